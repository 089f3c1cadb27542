"""Components of a checkpoint, on their device and ready to run.

The classes are imported one by one: diffusers' pipeline module imports `cosmos_guardrail` wherever that package is
installed, and fails if torchvision is not.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch

from cosmos3_serve.errors import CheckpointUnavailable, StartRefused
from cosmos3_serve.weights.precision import require_plain

DeviceChoice = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class Components:
    transformer: Any
    vae: Any
    tokenizer: Any
    device: torch.device
    dtype: torch.dtype
    stored: str = ""  # the dtype on disk, where it is known

    @property
    def precision(self) -> str:
        """The weights' dtype, and that of the file where it differs: `bfloat16 from float8_e4m3fn`."""
        dtype = str(self.dtype).removeprefix("torch.")
        return dtype if self.stored in ("", dtype) else f"{dtype} from {self.stored}"

    @property
    def spatial(self) -> int:
        """Pixels per latent, each side."""
        return int(self.vae.config.scale_factor_spatial)

    @property
    def temporal(self) -> int:
        """Frames per latent frame after the first."""
        return int(self.vae.config.scale_factor_temporal)

    @property
    def parameters(self) -> int:
        """Of the transformer."""
        return sum(p.numel() for p in self.transformer.parameters())


def diffusers_version() -> str:
    return version("diffusers")


def pick_device(choice: DeviceChoice) -> torch.device:
    """
    Raises:
        StartRefused: CUDA was asked for and is not there.
    """
    if choice == "cuda" and not torch.cuda.is_available():
        raise StartRefused(
            "device cuda was asked for, but torch sees no CUDA device", remedy="use --device auto or cpu"
        )
    if choice == "auto":
        choice = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device("cuda", torch.cuda.current_device()) if choice == "cuda" else torch.device("cpu")


def capabilities(device: torch.device) -> tuple[str, ...]:
    """Compute capability of a CUDA device, such as `9.0`; empty for the CPU."""
    if device.type != "cuda":
        return ()
    major, minor = torch.cuda.get_device_capability(device)
    return (f"{major}.{minor}",)


def load_components(path: Path, device: torch.device, dtype: torch.dtype | None = None) -> Components:
    """Load in `dtype`, by default float32 on a CPU and bfloat16 on CUDA. Never reaches for the network.

    Raises:
        CheckpointUnavailable: the files are not those of a Cosmos3 checkpoint that this diffusers version reads, or
            its weights are quantized (code `checkpoint_quantized`).
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from diffusers import AutoencoderKLWan, Cosmos3OmniTransformer
    from transformers import AutoTokenizer

    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    options: dict[str, Any] = {"torch_dtype": dtype, "use_safetensors": True, "local_files_only": True}
    stored = require_plain(path, path.name).dtype
    try:
        transformer = Cosmos3OmniTransformer.from_pretrained(str(path), subfolder="transformer", **options)
        vae = AutoencoderKLWan.from_pretrained(str(path), subfolder="vae", **options)
        tokenizer = AutoTokenizer.from_pretrained(str(path / "text_tokenizer"), local_files_only=True)
        _check(transformer, vae, tokenizer)
    except (ImportError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise StartRefused(
                "the checkpoint does not fit into the memory of this device", remedy="use a larger GPU or --device cpu"
            ) from None
        reason = str(error).replace(str(path), "<checkpoint>").splitlines()[0][:300] if str(error) else ""
        raise CheckpointUnavailable(
            f"diffusers {diffusers_version()} cannot load the checkpoint: {reason or type(error).__name__}",
            remedy="use a Cosmos3 checkpoint in diffusers layout (model_index.json, transformer/, vae/, ...)",
        ) from error
    for module in (transformer, vae):
        module.eval().requires_grad_(False).to(device)
    return Components(transformer, vae, tokenizer, device, dtype, stored)


def _check(transformer: Any, vae: Any, tokenizer: Any) -> None:
    config = transformer.config
    if config.latent_channel != vae.config.z_dim:
        raise ValueError(f"transformer has {config.latent_channel} latent channels, the VAE {vae.config.z_dim}")
    start = tokenizer.convert_tokens_to_ids("<|vision_start|>")
    if start is None or tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer lacks <|vision_start|> or an end-of-sequence token")
