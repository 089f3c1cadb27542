"""Resolving what stands after --checkpoint: each kind of text, each way to be incomplete, each refusal of the Hub."""

import json
import os
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.hub import GOOD_TOKEN, OTHER_TOKEN, Repo, StubHub, stub_hub
from support.tiny import tiny_checkpoint

from cosmos3_serve.errors import CheckpointUnavailable, UsageError
from cosmos3_serve.weights import checkpoint as module
from cosmos3_serve.weights import manifest
from cosmos3_serve.weights.checkpoint import NANO, PINNED, Checkpoint, resolve_checkpoint
from cosmos3_serve.weights.manifest import payload_paths


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


def repo_of(path: Path, revision: str) -> Repo:
    """The tiny checkpoint as a repository of the stub Hub, without the file that says its weights are random."""
    files = {p.relative_to(path).as_posix(): p.read_bytes() for p in payload_paths(path)}
    del files["WEIGHTS.json"]
    return Repo(revision, {**files, "README.md": b"a card", "pickled.bin": b"never fetched"})


@pytest.fixture
def hub(tmp_path) -> Iterator[StubHub]:
    tiny = tiny_checkpoint().path
    with stub_hub({NANO: repo_of(tiny, PINNED[NANO]), "me/mine": repo_of(tiny, "c" * 40)}) as stub:
        yield stub


@pytest.fixture
def surroundings(hub, tmp_path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": GOOD_TOKEN}


@pytest.fixture(scope="module")
def fetched_once(tmp_path_factory) -> Path:
    """An HF_HOME after one verified fetch of Nano."""
    home = tmp_path_factory.mktemp("fetched") / "hf"
    with stub_hub({NANO: repo_of(tiny_checkpoint().path, PINNED[NANO])}) as stub:
        environ = {**stub.environ(), "HF_HOME": str(home)}
        resolve_checkpoint("Cosmos3-Nano", home.parent / "cache", environ=environ)
    return home


@pytest.fixture
def fetched(fetched_once, hub, surroundings, tmp_path) -> Checkpoint:
    """Nano as it is after one verified fetch: in the Hub cache, with its manifest, and every hash remembered."""
    shutil.copytree(fetched_once, surroundings["HF_HOME"], symlinks=True)
    offline = {**surroundings, "HF_HUB_OFFLINE": "1"}
    found = resolve_checkpoint("Cosmos3-Nano", tmp_path / "cache", environ=offline)
    assert hub.asked == [] and (tmp_path / "cache" / "checkpoint-hashes.json").is_file()
    return found


@pytest.fixture
def impatient(monkeypatch) -> None:
    """The real client waits half a minute between its attempts to reach a Hub that is not there."""
    monkeypatch.setattr("huggingface_hub.utils._http.time", SimpleNamespace(sleep=lambda seconds: None, time=time.time))


@pytest.mark.parametrize("text", ["Cosmos3-Nano", "nvidia/Cosmos3-Nano"])
def test_nano_is_fetched_at_its_pin(hub, surroundings, tmp_path, text):
    checkpoint = resolve_checkpoint(text, tmp_path / "cache", environ=surroundings)
    assert (checkpoint.id, checkpoint.revision, checkpoint.weights) == (NANO, PINNED[NANO], "pretrained")
    assert all(f"/{PINNED[NANO]}" in path or path.startswith("/stub-bytes/") for _, path, _ in hub.asked)
    assert not any("pickled.bin" in path or "README.md" in path for path in hub.downloads())
    assert checkpoint.path.is_relative_to(tmp_path / "hf" / "hub")


def test_other_repositories_are_of_unknown_weights(hub, surroundings, tmp_path):
    checkpoint = resolve_checkpoint("me/mine", tmp_path / "cache", environ=surroundings)
    assert checkpoint.weights == "unknown"
    assert checkpoint.revision == "c" * 40  # the commit of the snapshot, not the name that was asked for


def test_offline_after_one_verified_fetch_asks_nobody(hub, surroundings, tmp_path):
    first = resolve_checkpoint("Cosmos3-Nano", tmp_path / "cache", environ=surroundings)
    asked = len(hub.asked)
    offline = {**surroundings, "HF_HUB_OFFLINE": "1"}
    assert resolve_checkpoint("Cosmos3-Nano", tmp_path / "cache", environ=offline) == first
    assert len(hub.asked) == asked


def test_an_unreachable_hub_is_no_obstacle_after_one_verified_fetch(fetched, surroundings, tmp_path, impatient):
    away = {**surroundings, "HF_ENDPOINT": "http://127.0.0.1:9"}
    assert resolve_checkpoint("Cosmos3-Nano", tmp_path / "cache", environ=away) == fetched


@pytest.mark.parametrize("offline", ["0", "1"])
@pytest.mark.parametrize("name", ["transformer/diffusion_pytorch_model.safetensors", "config.json"])
def test_a_changed_byte_is_refused(fetched, surroundings, tmp_path, name, offline):
    """Same name, same size, same modification time: only the bytes tell. One file is large, one in git."""
    file = (fetched.path / name).resolve()
    stat, data = file.stat(), bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(CheckpointUnavailable, match=name) as caught:
        resolve_checkpoint("Cosmos3-Nano", tmp_path / "cache", environ={**surroundings, "HF_HUB_OFFLINE": offline})
    assert caught.value.stable_code == "checkpoint_altered"
    assert "start again" in caught.value.remedy


def test_bytes_that_differ_on_their_way_are_refused(hub, surroundings, tmp_path):
    file = "transformer/diffusion_pytorch_model.safetensors"
    data = bytearray(hub.repos[NANO].files[file])
    data[-1] ^= 1
    hub.repos[NANO].lies[file] = bytes(data)
    with pytest.raises(CheckpointUnavailable, match=file) as caught:
        resolve_checkpoint("Cosmos3-Nano", tmp_path / "cache", environ=surroundings)
    assert caught.value.stable_code == "checkpoint_altered"


def lose_a_file(snapshot: Path) -> None:
    (snapshot / "config.json").unlink()


def lose_all(snapshot: Path) -> None:
    shutil.rmtree(snapshot)
    snapshot.mkdir()


def add_a_file(snapshot: Path) -> None:
    (snapshot / "transformer" / "extra.json").write_text("{}")


def link_elsewhere(snapshot: Path) -> None:
    elsewhere = snapshot.parents[4] / "elsewhere.json"
    elsewhere.write_bytes((snapshot / "config.json").read_bytes())
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(elsewhere)


def break_manifest(snapshot: Path) -> None:
    (manifest,) = (snapshot.parents[3] / "cosmos3-payload").rglob("*.json")
    manifest.write_text(manifest.read_text().replace('"size": ', '"size": 1'))


def lose_manifest(snapshot: Path) -> None:
    shutil.rmtree(snapshot.parents[3] / "cosmos3-payload")


@pytest.mark.parametrize(
    "damage, code",
    [
        (lose_a_file, "checkpoint_incomplete"),
        (lose_all, "checkpoint_incomplete"),
        (add_a_file, "checkpoint_altered"),
        (link_elsewhere, "checkpoint_altered"),
        (break_manifest, "checkpoint_manifest"),
        (lose_manifest, "checkpoint_unverified"),
        (shutil.rmtree, "checkpoint_offline"),
    ],
)
def test_each_damage_to_the_cache_has_its_own_code_offline(fetched, surroundings, tmp_path, damage, code):
    damage(fetched.path)
    with pytest.raises(CheckpointUnavailable) as caught:
        resolve_checkpoint("Cosmos3-Nano", tmp_path / "cache", environ={**surroundings, "HF_HUB_OFFLINE": "1"})
    assert caught.value.stable_code == code
    assert caught.value.remedy and str(tmp_path) not in caught.value.detail + caught.value.remedy


def test_large_files_are_hashed_once(hub, surroundings, tmp_path, monkeypatch):
    hashed: list[str] = []
    real = manifest.sha256_file
    monkeypatch.setattr(manifest, "sha256_file", lambda path, on_bytes=None: hashed.append(path.name) or real(path))
    resolve_checkpoint("Cosmos3-Nano", tmp_path / "cache", environ=surroundings)
    assert len(hashed) == len(set(hashed)) > 10
    once = len(hashed)
    resolve_checkpoint("Cosmos3-Nano", tmp_path / "cache", environ=surroundings)
    assert len(hashed) == once


def test_another_listing_than_the_first_is_refused(hub, fetched, surroundings, tmp_path):
    hub.repos[NANO].files["new.json"] = b"{}"  # a commit never changes: whoever answers this is not the same Hub
    with pytest.raises(CheckpointUnavailable) as caught:
        resolve_checkpoint("Cosmos3-Nano", tmp_path / "cache", environ=surroundings)
    assert caught.value.stable_code == "checkpoint_manifest"


@pytest.mark.parametrize(
    "text, status, gated, token, code",
    [
        ("me/gone", None, False, GOOD_TOKEN, "checkpoint_not_found"),
        ("me/mine@" + "d" * 40, None, False, GOOD_TOKEN, "checkpoint_not_found"),
        ("me/mine", None, True, OTHER_TOKEN, "checkpoint_access_denied"),
        ("me/mine", None, False, "hf_revoked", "checkpoint_access_denied"),
        ("me/mine", 400, False, GOOD_TOKEN, "checkpoint_unavailable"),
    ],
)
def test_each_failure_of_the_hub_has_its_own_code(hub, surroundings, tmp_path, text, status, gated, token, code):
    hub.status, hub.repos["me/mine"].gated = status, gated
    with pytest.raises(CheckpointUnavailable) as caught:
        resolve_checkpoint(text, tmp_path / "cache", environ={**surroundings, "HF_TOKEN": token})
    assert caught.value.stable_code == code
    assert caught.value.exit_code == 3
    assert caught.value.remedy and token not in caught.value.detail


@pytest.mark.parametrize("offline, says", [("1", "HF_HUB_OFFLINE is set"), ("0", "the Hub cannot be reached")])
def test_not_cached_and_no_hub(tmp_path, offline, says, impatient):
    environ = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": offline, "HF_ENDPOINT": "http://127.0.0.1:9"}
    with pytest.raises(CheckpointUnavailable, match=says) as caught:
        resolve_checkpoint("Cosmos3-Nano", tmp_path, environ=environ)
    assert caught.value.stable_code == "checkpoint_offline"


def test_a_hub_cache_that_cannot_be_written(hub, surroundings, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointUnavailable, match="cannot be written") as caught:
        resolve_checkpoint("me/mine", tmp_path / "cache", environ={**surroundings, "HF_HOME": str(tmp_path / "file")})
    assert "NPA_MODEL_CACHE_DIR" in caught.value.remedy


def test_local_directory_wins_over_a_hub_id(copy, tmp_path, monkeypatch):
    (tmp_path / "nvidia").mkdir()
    copy.rename(tmp_path / "nvidia" / "Cosmos3-Nano")
    monkeypatch.chdir(tmp_path)
    assert module.resolve_checkpoint("nvidia/Cosmos3-Nano", tmp_path / "cache").revision == "local"


# ---- layouts of the framework's own --------------------------------------------------------------------------------


@pytest.fixture
def native(tmp_path) -> Path:
    """config.json beside safetensors, as the framework loads it by itself."""
    folder = tmp_path / "native"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    safetensors(folder / "model.safetensors")
    return folder


def test_the_frameworks_own_layout_is_complete_for_the_framework_only(native, tmp_path):
    found = resolve_checkpoint(str(native), tmp_path / "cache", framework=True)
    assert (found.id, found.revision, found.weights) == ("native", "local", "unknown")
    with pytest.raises(CheckpointUnavailable, match=r"model_index\.json"):
        resolve_checkpoint(str(native), tmp_path / "cache")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "config.json").unlink(), r"config\.json is missing"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"short"), "broken header"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"model_index\.json"),
    ],
)
def test_the_frameworks_own_layout_may_be_incomplete_too(native, tmp_path, spoil, said):
    spoil(native)
    with pytest.raises(CheckpointUnavailable, match=said):
        resolve_checkpoint(str(native), tmp_path / "cache", framework=True)


def test_a_dcp_checkpoint_needs_its_metadata(tmp_path):
    folder = tmp_path / "dcp"
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(b"x")
    with pytest.raises(CheckpointUnavailable, match=r"\.metadata"):
        resolve_checkpoint(str(folder), tmp_path / "cache", framework=True)
    (folder / ".metadata").write_bytes(b"x")
    assert resolve_checkpoint(str(folder), tmp_path / "cache", framework=True).id == "dcp"


def test_the_diffusers_layout_is_complete_for_the_framework_too(copy, tmp_path):
    assert resolve_checkpoint(str(copy), tmp_path / "cache", framework=True).digest == tiny_checkpoint().digest


def test_tiny_is_not_for_the_framework(tmp_path):
    with pytest.raises(UsageError, match="the framework does not load it"):
        resolve_checkpoint("tiny", tmp_path / "cache", framework=True)
