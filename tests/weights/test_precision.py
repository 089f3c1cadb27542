"""How a checkpoint stores its weights: named where it loads, refused by name where it would load as noise."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny import tiny_checkpoint

from cosmos3_serve.errors import CheckpointUnavailable
from cosmos3_serve.generator.dry_run import dry_run
from cosmos3_serve.generator.prepare import prepare
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.weights.precision import Precision, require_plain, stored_precision


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint().path, tmp_path / "checkpoint"))


def as_fp8(root: Path, *, scales: str | None) -> None:
    """Store the transformer's matrices in FP8, with a scale beside each where a suffix is given."""
    [file] = (root / "transformer").glob("*.safetensors")
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(file).items():
        if tensor.ndim == 2 and name.endswith("weight"):
            scale = tensor.abs().max() / 448.0
            tensors[name] = (tensor / scale if scales else tensor).to(torch.float8_e4m3fn)
            if scales:
                tensors[name + scales] = scale
        else:
            tensors[name] = tensor
    save_file(tensors, file, {"format": "pt"})


def declare(path: Path, **content: Any) -> None:
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, **content}))


def test_the_tiny_checkpoint_is_plain(copy: Path) -> None:
    found = require_plain(copy, "tiny")
    assert found.method is None and found.dtype in ("float32", "bfloat16")
    assert str(found) == found.dtype


def test_modelopts_fp8_is_refused_by_name(copy: Path) -> None:
    as_fp8(copy, scales="_scale")
    declare(copy / "hf_quant_config.json", producer={"name": "modelopt"}, quantization={"quant_algo": "FP8"})
    assert stored_precision(copy) == Precision("float8_e4m3fn", "modelopt FP8")
    with pytest.raises(CheckpointUnavailable, match="modelopt FP8") as refused:
        require_plain(copy, "nvidia/Some-FP8")
    assert refused.value.stable_code == "checkpoint_quantized" and "nvidia/Cosmos3-Nano" in refused.value.remedy


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt NVFP4"), ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_type": "FP8"}, "modelopt FP8"), ({}, "unnamed method"),
        ({"quant_method": 7, "quant_algo": []}, "7"),
    ],
)  # fmt: skip
def test_a_declared_method_is_refused(config: dict[str, Any], method: str, copy: Path) -> None:
    declare(copy / "transformer" / "config.json", quantization_config=config)
    with pytest.raises(CheckpointUnavailable) as refused:
        require_plain(copy, "community")
    assert f"quantized ({method};" in refused.value.detail


@pytest.mark.parametrize("suffix", ["_scale", "_scale_inv"])
def test_scales_that_nobody_declares_are_found(suffix: str, copy: Path) -> None:
    """diffusers alone would drop the scales and load the rest."""
    as_fp8(copy, scales=suffix)
    with pytest.raises(CheckpointUnavailable, match="method not declared"):
        require_plain(copy, "community")


def test_fp8_without_scales_loads_and_is_named(copy: Path) -> None:
    from cosmos3_serve.generator.engines.diffusers.loader import load_components

    as_fp8(copy, scales=None)
    assert require_plain(copy, "community") == Precision("float8_e4m3fn")
    parts = load_components(copy, torch.device("cpu"))
    assert parts.dtype == torch.float32 and parts.stored == "float8_e4m3fn"
    assert {p.dtype for p in parts.transformer.parameters()} == {torch.float32}
    assert parts.precision == "float32 from float8_e4m3fn"


def test_the_engine_refuses_too(copy: Path) -> None:
    from cosmos3_serve.generator.engines.diffusers.loader import load_components

    as_fp8(copy, scales="_scale")
    with pytest.raises(CheckpointUnavailable) as refused:
        load_components(copy, torch.device("cpu"))
    assert refused.value.stable_code == "checkpoint_quantized"


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0[]", b"\x0b\0\0\0\0\0\0\0" + b'{"a": {}}  '])
def test_a_broken_header_is_told(content: bytes, copy: Path) -> None:
    [file] = (copy / "transformer").glob("*.safetensors")
    file.write_bytes(content)
    with pytest.raises(CheckpointUnavailable) as refused:
        stored_precision(copy)
    assert refused.value.stable_code == "checkpoint_incomplete"


def test_a_start_and_its_dry_run_refuse_before_anything_loads(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "NPA_COSMOS3_RAY_TOKEN": "right-token-123", "NPA_IMAGE_SOURCE_SHA": "a" * 40, "NPA_MODEL_CACHE_DISABLED": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    as_fp8(copy, scales="_scale")
    settings = GeneratorSettings(
        engine="diffusers",
        guardrails=False,
        checkpoint=str(copy),
        output_path=tmp_path / "out",
        cache_dir=tmp_path,
        port=0,
    )
    for begin in (prepare, dry_run):
        with pytest.raises(CheckpointUnavailable) as refused:
            begin(settings)
        assert refused.value.stable_code == "checkpoint_quantized"
