"""Resolving what stands after --checkpoint: each kind of text, each way to be incomplete, each refusal of the Hub."""

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
from support.tiny import tiny_checkpoint

from cosmos3_serve.errors import CheckpointUnavailable, UsageError
from cosmos3_serve.weights import checkpoint as module
from cosmos3_serve.weights import manifest
from cosmos3_serve.weights.checkpoint import NANO, PINNED, resolve_checkpoint


@pytest.fixture
def copy(tmp_path) -> Path:
    target = tmp_path / "my-checkpoint"
    shutil.copytree(tiny_checkpoint().path, target)
    return target


def safetensors(path: Path, size: int = 64) -> None:
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))


def test_tiny():
    checkpoint = tiny_checkpoint()
    assert (checkpoint.id, checkpoint.revision, checkpoint.weights) == ("tiny", "seed-0", "random")
    assert len(checkpoint.digest) == 64


def test_directory_has_the_same_digest_and_keeps_its_label(copy, tmp_path):
    checkpoint = resolve_checkpoint(str(copy), tmp_path / "cache")
    assert (checkpoint.path, checkpoint.id, checkpoint.revision) == (copy, "my-checkpoint", "local")
    assert checkpoint.digest == tiny_checkpoint().digest
    assert checkpoint.weights == "random"
    (copy / "WEIGHTS.json").unlink()
    assert resolve_checkpoint(str(copy), tmp_path / "cache").weights == "unknown"


def test_digest_changes_with_one_byte(copy, tmp_path):
    (copy / "generation_config.json").write_bytes((copy / "generation_config.json").read_bytes() + b" ")
    assert resolve_checkpoint(str(copy), tmp_path / "cache").digest != tiny_checkpoint().digest


def test_hashes_are_remembered_until_a_file_changes(copy, tmp_path, monkeypatch):
    hashed: list[str] = []
    real = manifest.sha256_file

    def counting(path: Path) -> str:
        hashed.append(path.name)
        return real(path)

    monkeypatch.setattr(manifest, "sha256_file", counting)
    first = resolve_checkpoint(str(copy), tmp_path / "cache").digest
    once = len(hashed)
    assert resolve_checkpoint(str(copy), tmp_path / "cache").digest == first
    assert len(hashed) == once > 10
    stat = (copy / "config.json").stat()
    text = (copy / "config.json").read_text()
    (copy / "config.json").write_text(text.replace("float32", "float64"))  # same size
    os.utime(copy / "config.json", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert resolve_checkpoint(str(copy), tmp_path / "cache").digest != first
    assert hashed[once:] == ["config.json"]


def test_broken_hash_cache_is_no_obstacle(copy, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "checkpoint-hashes.json").write_text("[1")
    assert resolve_checkpoint(str(copy), tmp_path / "cache").digest == tiny_checkpoint().digest


def remove_vae(root: Path) -> None:
    shutil.rmtree(root / "vae")


def cut_shard(root: Path) -> None:
    file = root / "transformer" / "diffusion_pytorch_model.safetensors"
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size - 1)


def garbage_shard(root: Path) -> None:
    (root / "transformer" / "diffusion_pytorch_model.safetensors").write_bytes(b"\xff" * 100)


def name_missing_shard(root: Path) -> None:
    folder = root / "transformer"
    safetensors(folder / "model-00001-of-00002.safetensors")
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def broken_index(root: Path) -> None:
    (root / "transformer" / "model.safetensors.index.json").write_text("{}")


def remove_index(root: Path) -> None:
    (root / "model_index.json").unlink()


def remove_tokenizer(root: Path) -> None:
    (root / "text_tokenizer" / "tokenizer_config.json").unlink()


@pytest.mark.parametrize(
    "damage, says",
    [
        (remove_vae, "vae/ is missing"),
        (cut_shard, "bytes instead of"),
        (garbage_shard, "broken header"),
        (name_missing_shard, "model-00002-of-00002.safetensors, which is missing"),
        (broken_index, "no weight_map"),
        (remove_index, "model_index.json is missing"),
        (remove_tokenizer, "tokenizer_config.json is missing"),
    ],
)
def test_incomplete_payload_is_refused(copy, tmp_path, damage, says):
    damage(copy)
    with pytest.raises(CheckpointUnavailable, match=says) as caught:
        resolve_checkpoint(str(copy), tmp_path / "cache")
    assert caught.value.stable_code == "checkpoint_incomplete"
    assert str(tmp_path) not in caught.value.detail


@pytest.mark.parametrize("text", ["/no/such/dir", "./nope", "~/nope-nope", "nonsense", "a/b/c", "", "org/na me"])
def test_nonsense_is_a_usage_error(text, tmp_path):
    with pytest.raises(UsageError) as caught:
        resolve_checkpoint(text, tmp_path)
    assert "tiny" in caught.value.remedy


@pytest.fixture
def hub(monkeypatch, copy):
    """huggingface_hub with a snapshot that lies on disk; records what was asked of it."""
    asked: list[tuple[str, str | None, bool]] = []
    commit = PINNED[NANO]
    snapshot = copy.parent / commit
    copy.rename(snapshot)
    (snapshot / "WEIGHTS.json").unlink()

    def download(repo, *, revision, allow_patterns, local_files_only):
        assert "*.bin" not in allow_patterns and "*.safetensors" in allow_patterns
        asked.append((repo, revision, local_files_only))
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return asked


@pytest.mark.parametrize("text", ["Cosmos3-Nano", "nvidia/Cosmos3-Nano"])
def test_nano_is_fetched_at_its_pin(hub, tmp_path, text):
    checkpoint = resolve_checkpoint(text, tmp_path / "cache", environ={})
    assert hub == [(NANO, PINNED[NANO], False)]
    assert (checkpoint.id, checkpoint.revision, checkpoint.weights) == (NANO, PINNED[NANO], "pretrained")


def test_other_repositories_are_of_unknown_weights(hub, tmp_path):
    checkpoint = resolve_checkpoint("me/mine@v2", tmp_path / "cache", environ={"HF_HUB_OFFLINE": "1"})
    assert hub == [("me/mine", "v2", True)]
    assert checkpoint.weights == "unknown"
    assert checkpoint.revision == PINNED[NANO]  # the commit of the snapshot, not the name that was asked for


def response(status: int):
    import httpx

    return httpx.Response(status, request=httpx.Request("GET", "https://hub.example/x"))


def hub_error(name: str, status: int):
    from huggingface_hub import errors

    kind = getattr(errors, name)
    try:
        return kind("no", response=response(status))
    except TypeError:
        return kind("no")


@pytest.mark.parametrize(
    "name, status, code",
    [
        ("GatedRepoError", 403, "checkpoint_access_denied"),
        ("RepositoryNotFoundError", 404, "checkpoint_not_found"),
        ("RevisionNotFoundError", 404, "checkpoint_not_found"),
        ("LocalEntryNotFoundError", 0, "checkpoint_offline"),
        ("OfflineModeIsEnabled", 0, "checkpoint_offline"),
        ("HfHubHTTPError", 401, "checkpoint_access_denied"),
        ("HfHubHTTPError", 500, "checkpoint_unavailable"),
    ],
)
def test_each_failure_of_the_hub_has_its_own_code(monkeypatch, tmp_path, name, status, code):
    def download(*args, **kwargs):
        raise hub_error(name, status)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(CheckpointUnavailable) as caught:
        resolve_checkpoint("Cosmos3-Nano", tmp_path, environ={})
    assert caught.value.stable_code == code
    assert caught.value.exit_code == 3
    assert caught.value.remedy


def test_offline_and_not_cached_without_any_request(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "empty"))
    with pytest.raises(CheckpointUnavailable, match="HF_HUB_OFFLINE is set") as caught:
        resolve_checkpoint("Cosmos3-Nano", tmp_path, environ={"HF_HUB_OFFLINE": "1"})
    assert caught.value.stable_code == "checkpoint_offline"


def test_local_directory_wins_over_a_hub_id(copy, tmp_path, monkeypatch):
    (tmp_path / "nvidia").mkdir()
    copy.rename(tmp_path / "nvidia" / "Cosmos3-Nano")
    monkeypatch.chdir(tmp_path)
    assert module.resolve_checkpoint("nvidia/Cosmos3-Nano", tmp_path / "cache").revision == "local"
