"""`blockworld`: found in the source tree, proved byte by byte, labelled as what it is."""

import shutil
from pathlib import Path

import pytest

from cosmos3_serve.errors import CheckpointUnavailable, UsageError
from cosmos3_serve.weights import blockworld
from cosmos3_serve.weights.checkpoint import resolve_checkpoint


def test_it_is_found_offline_and_labelled(tmp_path: Path) -> None:
    found = resolve_checkpoint("blockworld", tmp_path, environ={"HF_HUB_OFFLINE": "1"})
    assert (found.id, found.weights, found.path) == ("blockworld", "blockworld", blockworld.SOURCE)


def test_all_its_files_are_within_25_megabytes() -> None:
    assert sum(f.stat().st_size for f in blockworld.SOURCE.rglob("*") if f.is_file()) < 25_000_000


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    target = tmp_path / "blockworld"
    shutil.copytree(blockworld.SOURCE, target)
    monkeypatch.setattr(blockworld, "SOURCE", target)
    return target


def test_an_altered_file_is_refused_by_name(copy: Path, tmp_path: Path) -> None:
    weights = copy / "vae" / "diffusion_pytorch_model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    with pytest.raises(CheckpointUnavailable, match="vae/diffusion_pytorch_model") as refused:
        resolve_checkpoint("blockworld", tmp_path)
    assert refused.value.stable_code == "checkpoint_altered"


def test_without_its_files_the_remedy_says_how_to_install_them(copy: Path, tmp_path: Path) -> None:
    shutil.rmtree(copy)
    with pytest.raises(CheckpointUnavailable) as refused:
        resolve_checkpoint("blockworld", tmp_path)
    assert refused.value.stable_code == "checkpoint_not_found"
    assert "./models" in (refused.value.remedy or "")


def test_a_copy_elsewhere_is_not_taken_at_its_word(copy: Path, tmp_path: Path) -> None:
    assert resolve_checkpoint(str(copy), tmp_path).weights == "unknown"


def test_the_framework_does_not_load_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="framework"):
        resolve_checkpoint("blockworld", tmp_path, framework=True)
