"""How a checkpoint stores its transformer: read from configurations and safetensors headers, before anything is loaded.

diffusers drops tensors that its model does not have, so FP8 weights with scales beside them would load with no
more than a warning, and give noise. That is why the headers are read here, whatever the configurations say.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cosmos3_serve.errors import CheckpointUnavailable

TRANSFORMER: Final = "transformer"
MODELOPT_CONFIG: Final = "hf_quant_config.json"
_MAX_HEADER: Final = 256 * 1024 * 1024
# safetensors' names to torch's.
_DTYPES: Final = {
    "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "I8": "int8", "U8": "uint8", "F4": "float4_e2m1fn_x2",
}  # fmt: skip
_PLAIN: Final = frozenset({"float32", "float16", "bfloat16", "float64"})
_SCALES: Final = (
    "_scale",
    "_scale_inv",
    "_scale_2",
    "_amax",
    "_zero_point",
    "_absmax",
    ".qweight",
    ".scales",
    ".qzeros",
)


@dataclass(frozen=True, slots=True)
class Precision:
    """
    Attributes:
        dtype: in which most bytes of the transformer are stored, by torch's name.
        method: of the quantization, such as `modelopt FP8`; None where the weights are numbers as they are.
    """

    dtype: str
    method: str | None = None

    def __str__(self) -> str:
        return f"{self.dtype} ({self.method})" if self.method else self.dtype


def stored_precision(root: Path) -> Precision:
    """Precision of a checkpoint in diffusers' layout. Raises CheckpointUnavailable where a header cannot be read."""
    folder = root / TRANSFORMER
    sizes: Counter[str] = Counter()
    scaled = False
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in _header(file).items():
            if name != "__metadata__":
                first, end = tensor["data_offsets"]
                sizes[_DTYPES.get(tensor["dtype"], str(tensor["dtype"]).lower())] += end - first
                scaled = scaled or name.endswith(_SCALES)
    dtype = sizes.most_common(1)[0][0] if sizes else "unknown"
    method = _declared(root, folder)
    if method is None and scaled and set(sizes) - _PLAIN:
        method = "scaled weights, method not declared"
    return Precision(dtype, method)


def require_plain(root: Path, name: str) -> Precision:
    """The precision of a checkpoint that the diffusers engine can load.

    Raises:
        CheckpointUnavailable: code `checkpoint_quantized`: its weights need a method that this engine does not run.
    """
    found = stored_precision(root)
    if found.method is not None:
        raise CheckpointUnavailable(
            f"checkpoint {name} is quantized ({found.method}; stored as {found.dtype}); the diffusers engine loads"
            " plain weights only",
            code="checkpoint_quantized",
            remedy="use the checkpoint that it was made from, such as nvidia/Cosmos3-Nano",
        )
    return found


def _declared(root: Path, folder: Path) -> str | None:
    """The method as the checkpoint's own configurations name it."""
    config = _json(folder / "config.json").get("quantization_config")
    if isinstance(config, dict):
        method = str(config.get("quant_method") or "unnamed method")
        kind = config.get("quant_algo") or config.get("quant_type") or config.get("fmt")
        return f"{method} {kind}"[:100] if isinstance(kind, str) else method[:100]
    for place in (root, folder):
        quantization = _json(place / MODELOPT_CONFIG).get("quantization")
        if isinstance(quantization, dict):
            return f"modelopt {quantization.get('quant_algo') or 'unnamed'}"[:100]
    return None


def _header(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > _MAX_HEADER:
                raise ValueError
            header = json.loads(stream.read(length))
        for name, tensor in header.items():
            if name != "__metadata__":
                first, end = tensor["data_offsets"]
                if not 0 <= first <= end or not isinstance(tensor["dtype"], str):
                    raise ValueError
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        raise CheckpointUnavailable(
            f"{TRANSFORMER}/{file.name} has a broken header",
            code="checkpoint_incomplete",
            remedy="fetch or copy it again; nothing was loaded",
        ) from None
    return dict(header)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
