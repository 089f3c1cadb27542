"""What upstream loads by itself: proved at the start, laid out in links, answered without a network. Hub: a stub."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.guardrail_hub import guardrail_repos
from support.hub import Repo, StubHub, stub_hub
from support.upstream_hub import AVAE_CKPT, AVAE_JSON, convert, nano_repo, upstream_repos

from cosmos3_serve.errors import CheckpointUnavailable
from cosmos3_serve.weights import guardrail_assets
from cosmos3_serve.weights.assets import GUARDRAIL1, NANO, QWEN_GUARD, WAN_VAE
from cosmos3_serve.weights.checkpoint import resolve_checkpoint
from cosmos3_serve.weights.guardrail_assets import GuardrailFiles, prove_guardrails
from cosmos3_serve.weights.upstream_files import UpstreamFiles, provide_upstream

Start = Callable[..., UpstreamFiles]


@pytest.fixture
def hub() -> Iterator[StubHub]:
    with stub_hub({**guardrail_repos(), **upstream_repos()}) as stub:
        yield stub


@pytest.fixture
def start(hub: StubHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """The framework engine's part of a start: guardrails, checkpoint, upstream's own assets."""
    monkeypatch.setattr(guardrail_assets, "export", lambda target, environ: None)
    home, cache = tmp_path / "hf", tmp_path / "cache"

    def started(checkpoint: str = NANO.repo, guardrails: bool = True, **more: str) -> UpstreamFiles:
        environ = {"HF_HOME": str(home), **hub.environ(), **more}
        files: GuardrailFiles | None = None
        if guardrails:
            files = prove_guardrails("framework", revision=None, cache_dir=cache, environ=environ)
        found = resolve_checkpoint(checkpoint, cache, environ=environ, framework=True)
        return provide_upstream(found, files, cache, convert=convert, environ=environ)

    return started


def ask(files: UpstreamFiles, *question: str) -> subprocess.CompletedProcess[str]:
    """As upstream asks: `uvx` by name, on the PATH of its workers."""
    given = files.environ()
    environ = {"PATH": given["PATH"].replace("${PATH}", os.environ["PATH"])}
    command = ["uvx", "--with", "click", "--with", "tqdm<4.70", "hf@1.16.4", "download", "--format=json", *question]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30)


def path_of(files: UpstreamFiles, *question: str) -> Path:
    answered = ask(files, *question)
    assert answered.returncode == 0, answered.stderr
    return Path(json.loads(answered.stdout)["path"])


def test_everything_that_upstream_asks_for_is_answered_from_the_disk(start: Start, hub: StubHub) -> None:
    files = start()
    assert [asset.repo for asset in files.assets] == [WAN_VAE.repo]
    asked = len(hub.asked)
    vae = path_of(files, WAN_VAE.repo, "--repo-type", "model", "--revision", WAN_VAE.revision, "Wan2.2_VAE.pth")
    assert vae.read_bytes() == b"stub, no weights"
    sound = path_of(files, NANO.repo, "--repo-type", "model", "--revision", "main", "--include", "sound_tokenizer/*")
    assert {path.name for path in (sound / "sound_tokenizer").iterdir()} > {AVAE_CKPT, AVAE_JSON, "config.json"}
    guard = path_of(files, GUARDRAIL1.repo, "--repo-type", "model", "--revision", GUARDRAIL1.revision, "--include", "*")
    assert (guard / "face_blur_filter/Resnet50_Final.pth").is_file()
    assert len(hub.asked) == asked


def test_the_classifier_is_found_by_its_name_alone(start: Start) -> None:
    """As transformers looks it up: by name, on the branch `main`, offline."""
    from huggingface_hub import try_to_load_from_cache

    given = start().environ()
    assert given["HF_HUB_OFFLINE"] == "1"
    found = try_to_load_from_cache(QWEN_GUARD.repo, "config.json", cache_dir=given["HF_HUB_CACHE"])
    assert isinstance(found, str) and QWEN_GUARD.revision in found and Path(found).is_file()


def test_anything_else_is_refused_and_said(start: Start) -> None:
    files = start(guardrails=False)
    for question in (
        ("someone/else", "--revision", "main"),
        (WAN_VAE.repo, "--revision", "main2", "Wan2.2_VAE.pth"),
        (WAN_VAE.repo, "--revision", WAN_VAE.revision, "other.pth"),
        (WAN_VAE.repo, "--revision", WAN_VAE.revision, "../../../refs/main"),
        (NANO.repo, "--repo-type", "dataset", "--revision", "main"),
        (),
    ):
        refused = ask(files, *question)
        assert refused.returncode == 3 and not refused.stdout, question
        assert refused.stderr.startswith("cosmos3-serve: ") and "Traceback" not in refused.stderr


def test_a_second_start_from_one_cache_offline(start: Start, hub: StubHub, tmp_path: Path) -> None:
    """Upstream converts the audio autoencoder where it finds it: never in the snapshot that a start verifies."""
    first = start()
    before = {path: path.stat().st_mtime_ns for path in first.checkpoint.rglob("*")}
    snapshot = tmp_path / "hf" / "hub" / "models--nvidia--Cosmos3-Nano" / "snapshots" / NANO.revision
    assert {path.name for path in (snapshot / "sound_tokenizer").iterdir()} == {
        "config.json", "diffusion_pytorch_model.safetensors",
    }  # fmt: skip
    asked = len(hub.asked)
    again = start(HF_HUB_OFFLINE="1")
    assert again == first and len(hub.asked) == asked
    assert {path: path.stat().st_mtime_ns for path in again.checkpoint.rglob("*")} == before  # nothing made twice


def test_what_upstream_left_in_a_snapshot_is_no_part_of_it(start: Start, tmp_path: Path) -> None:
    """Another program that shares the cache, or an older start, may have let upstream convert it there."""
    first = start(guardrails=False)
    folder = tmp_path / "hf/hub/models--nvidia--Cosmos3-Nano/snapshots" / NANO.revision / "sound_tokenizer"
    (folder / AVAE_CKPT).write_bytes(b"a foreign pickle")
    (folder / AVAE_JSON).write_bytes(b"{}")
    second = start(guardrails=False)
    assert second == first
    assert (second.checkpoint / "sound_tokenizer" / AVAE_CKPT).read_bytes() == b"derived from stub, no weights"
    (folder / "avae_other.ckpt").write_bytes(b"x")
    with pytest.raises(CheckpointUnavailable) as refused:
        start(guardrails=False)
    assert refused.value.stable_code == "checkpoint_altered" and "avae_other.ckpt" in refused.value.detail


def test_a_derived_file_that_differs_is_made_anew(start: Start) -> None:
    first = start(guardrails=False)
    derived = first.checkpoint / "sound_tokenizer" / AVAE_CKPT
    derived.write_bytes(b"another pickle")
    second = start(guardrails=False)
    assert (second.checkpoint / "sound_tokenizer" / AVAE_CKPT).read_bytes() == b"derived from stub, no weights"


def test_a_changed_answer_is_laid_out_anew(start: Start) -> None:
    first = start(guardrails=False)
    program = first.root / "bin" / "uvx"
    program.write_text("#!/bin/sh\nexit 0\n")
    link = first.root / "hub" / "models--Wan-AI--Wan2.2-TI2V-5B" / "refs" / "main"
    link.write_text("e" * 40)
    assert start(guardrails=False) == first
    assert "downloader.py" in program.read_text() and link.read_text() == WAN_VAE.revision


def test_what_the_hubs_client_keeps_for_itself_is_left_alone(start: Start) -> None:
    first = start(guardrails=False)
    kept = [first.root / "hub" / "CACHEDIR.TAG", first.root / "hub" / ".locks" / "models--a--b" / "c.lock"]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert start(guardrails=False) == first and all(path.exists() for path in kept)
    (first.root / "hub" / "models--someone--else").write_text("x")
    start(guardrails=False)
    assert not (first.root / "hub" / "models--someone--else").exists()


def test_an_asset_that_the_hub_serves_otherwise_is_refused(start: Start, hub: StubHub) -> None:
    hub.repos[WAN_VAE.repo].lies["Wan2.2_VAE.pth"] = b"other, no weights"[:16]
    with pytest.raises(CheckpointUnavailable) as refused:
        start(guardrails=False)
    assert refused.value.stable_code in ("checkpoint_altered", "checkpoint_incomplete")


def test_offline_without_the_assets_is_refused_at_the_start(start: Start, hub: StubHub, tmp_path: Path) -> None:
    environ = {"HF_HOME": str(tmp_path / "hf"), **hub.environ()}
    resolve_checkpoint(NANO.repo, tmp_path / "cache", environ=environ, framework=True)
    with pytest.raises(CheckpointUnavailable) as refused:
        start(guardrails=False, HF_HUB_OFFLINE="1")
    assert refused.value.stable_code == "checkpoint_offline" and WAN_VAE.repo in refused.value.detail


def test_a_local_checkpoint_is_not_written_into_and_takes_from_nano_what_it_lacks(
    start: Start, hub: StubHub, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    for name, data in nano_repo().files.items():
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_bytes(data)
    files = start(str(mine), guardrails=False)
    assert [asset.repo for asset in files.assets] == [WAN_VAE.repo, NANO.repo]
    assert not (mine / "sound_tokenizer" / AVAE_CKPT).exists()
    assert (files.checkpoint / "sound_tokenizer" / AVAE_CKPT).is_file()
    nano = path_of(files, NANO.repo, "--revision", "main", "--include", "sound_tokenizer/*")
    assert (nano / "sound_tokenizer" / AVAE_CKPT).is_file() and not (nano / "model.safetensors").exists()


def test_a_checkpoint_that_names_files_of_its_own_asks_for_nothing(start: Start, hub: StubHub, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "vae.pth").write_bytes(b"own")
    config = {"tokenizer": {"vae_path": str(mine / "vae.pth")}, "sound_gen": False, "vlm_config": {"tokenizer": {}}}
    (mine / "config.json").write_text(json.dumps({"model": {"config": config}}))
    (mine / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    files = start(str(mine), guardrails=False)
    assert files.assets == () and not hub.asked
    assert files.checkpoint.resolve() == mine


def test_a_sound_folder_that_upstream_cannot_convert_is_named(start: Start, hub: StubHub) -> None:
    broken = nano_repo()
    del broken.files["sound_tokenizer/config.json"]
    hub.repos[NANO.repo] = Repo(broken.revision, broken.files)
    with pytest.raises(CheckpointUnavailable, match="audio autoencoder") as refused:
        start(guardrails=False)
    assert refused.value.stable_code == "checkpoint_incomplete"
