"""The tiny checkpoint: deterministic, verified on reuse, safe from several processes, honestly labelled."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.tiny import tiny_checkpoint

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.weights import tiny
from cosmos3_serve.weights.manifest import payload_digest, read_payload

BUILD = """
import gc, pathlib, sys
gc.disable()  # thousands of modules, of which all stay
import torch
from diffusers.utils import is_cosmos_guardrail_available
from cosmos3_serve.generator.engines.diffusers.engine import DiffusersEngine
from cosmos3_serve.generator.engines.diffusers.loader import load_components
from cosmos3_serve.weights.tiny import ensure_tiny
assert is_cosmos_guardrail_available(), "the stand-in was not found"
load_components(ensure_tiny(pathlib.Path(sys.argv[1])), torch.device("cpu"))
assert "cosmos_guardrail" not in sys.modules
"""


def fake_build(out: Path, seed: int) -> None:
    (out / "WEIGHTS.json").write_text(json.dumps({"weights": "random", "seed": seed}))
    (out / "part").mkdir()
    (out / "part" / "model.safetensors").write_bytes(bytes([seed]) * 1000)


@pytest.fixture
def builds(monkeypatch):
    """Counts builds, each of them quick."""
    calls: list[int] = []

    def counted(out: Path, seed: int) -> None:
        calls.append(seed)
        fake_build(out, seed)

    monkeypatch.setattr("cosmos3_serve.weights.tiny_build.build", counted)
    return calls


def test_another_process_builds_the_same_bytes_and_never_touches_the_guardrail_package_nor_does_loading(tmp_path):
    """Where cosmos-guardrail is installed without torchvision, importing it (as diffusers' pipeline does) fails. One
    process for both: it is the imports that cost."""
    packages = tmp_path / "packages"
    (packages / "cosmos_guardrail").mkdir(parents=True)
    (packages / "cosmos_guardrail" / "__init__.py").write_text("raise RuntimeError('no torchvision')")
    (packages / "cosmos_guardrail-0.3.2.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: cosmos_guardrail\nVersion: 0.3.2\n"
    (packages / "cosmos_guardrail-0.3.2.dist-info" / "METADATA").write_text(metadata)
    path = os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", BUILD, str(tmp_path / "cache")], check=True, env=env, timeout=240)
    built = tmp_path / "cache" / tiny_checkpoint().path.name
    assert payload_digest(read_payload(built)) == tiny_checkpoint().digest


def test_says_that_its_weights_are_random():
    checkpoint = tiny_checkpoint()
    declared = json.loads((checkpoint.path / "WEIGHTS.json").read_text())
    assert declared["weights"] == checkpoint.weights == "random"
    assert declared["params"] == sum(declared["parts"].values())
    total = sum(f.stat().st_size for f in checkpoint.path.rglob("*") if f.is_file())
    assert 10e6 < total < 25e6


def test_both_readers_see_one_set_of_sizes():
    path = tiny_checkpoint().path
    ours = json.loads((path / "transformer" / "config.json").read_text())
    text = json.loads((path / "config.json").read_text())["text_config"]
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "head_dim", "vocab_size", "rope_theta"):
        assert ours[name] == text.get(name, text["rope_parameters"].get(name)), name
    assert ours["rope_axes_dim"] == text["rope_parameters"]["mrope_section"]


def test_files_are_readable_by_other_users():
    assert all(f.stat().st_mode & 0o044 for f in tiny_checkpoint().path.rglob("*.safetensors"))


def test_reuse_does_not_build_again(tmp_path, builds):
    first = tiny.ensure_tiny(tmp_path, seed=3)
    assert tiny.ensure_tiny(tmp_path, seed=3) == first
    assert builds == [3]
    assert tiny.ensure_tiny(tmp_path, seed=4) != first


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "add", "manifest", "half"])
def test_damaged_copy_is_built_again(tmp_path, builds, damage):
    path = tiny.ensure_tiny(tmp_path)
    good = payload_digest(read_payload(path))
    shard = path / "part" / "model.safetensors"
    if damage == "flip":
        shard.write_bytes(b"\1" + shard.read_bytes()[1:])
    elif damage == "cut":
        shard.write_bytes(shard.read_bytes()[:-1])
    elif damage == "remove":
        shard.unlink()
    elif damage == "add":
        (path / "stray.json").write_text("{}")
    elif damage == "manifest":
        (path / tiny.MANIFEST).write_text("{")
    else:
        (path / tiny.MANIFEST).unlink()
    assert tiny.ensure_tiny(tmp_path) == path
    assert len(builds) == 2
    assert payload_digest(read_payload(path)) == good


def test_failed_build_leaves_nothing_behind(tmp_path, monkeypatch):
    def broken(out: Path, seed: int) -> None:
        fake_build(out, seed)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cosmos3_serve.weights.tiny_build.build", broken)
    with pytest.raises(StartRefused, match="No space left"):
        tiny.ensure_tiny(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [f"tiny-cosmos3-r{tiny.RECIPE}-s0.lock"]


def test_missing_library_names_the_extra(tmp_path, monkeypatch):
    def broken(out: Path, seed: int) -> None:
        raise ModuleNotFoundError("No module named 'diffusers'", name="diffusers")

    monkeypatch.setattr("cosmos3_serve.weights.tiny_build.build", broken)
    with pytest.raises(StartRefused) as caught:
        tiny.ensure_tiny(tmp_path)
    assert caught.value.stable_code == "dependency_missing"
    assert "'.[diffusers]'" in caught.value.remedy


def test_a_file_in_place_of_the_cache_is_refused(tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(StartRefused, match="cannot be written"):
        tiny.ensure_tiny(tmp_path / "cache")


def test_concurrent_callers_build_once(tmp_path, builds):
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(tiny.ensure_tiny(tmp_path))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 1 and len(paths) == 6
    assert builds == [0]
