"""A dry run refuses what a start refuses, tells what a start would fetch, downloads nothing and leaves nothing."""

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.guardrail_hub import REVISION_1_0, engine_repos, guardrail_repos
from support.hub import OTHER_TOKEN, StubHub, stub_hub

from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.generator import dry_run as module
from cosmos3_serve.generator import prepare as preparation
from cosmos3_serve.generator.dry_run import dry_run
from cosmos3_serve.generator.ledger.files import RootLock
from cosmos3_serve.service import http_server
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.weights.assets import GUARDRAIL1, GUARDRAIL_1_0, NANO, QWEN_GUARD, WAN_VAE
from cosmos3_serve.weights.guardrail_assets import prove_guardrails
from cosmos3_serve.weights.hub import prove_checkpoint_asset
from cosmos3_serve.weights.hub_env import Hub
from cosmos3_serve.weights.manifest import HashCache


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StubHub]:
    """What a guarded start needs: an entitled token, a Hub, packages (as if installed), a source revision."""
    with stub_hub({**guardrail_repos(), **engine_repos()}) as stub:
        for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "NPA_MODEL_CACHE_DIR", "NLTK_DATA"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {**stub.environ(), "HF_HOME": str(tmp_path / "hf"), "NPA_MODEL_CACHE_DISABLED": "1"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("NPA_COSMOS3_RAY_TOKEN", "right-token-123")
        monkeypatch.delenv("NPA_COSMOS3_RAY_TOKEN_FILE", raising=False)
        monkeypatch.setenv("NPA_IMAGE_SOURCE_SHA", "a" * 40)
        monkeypatch.setattr(module, "require_packages", lambda engine: None)
        for name in ("ray", "nltk"):  # a start refuses where they are imported already; other tests import them here
            monkeypatch.delitem(sys.modules, name, raising=False)
        yield stub


def settings(tmp_path: Path, **fields: object) -> GeneratorSettings:
    common = {"engine": "diffusers", "guardrail_revision": REVISION_1_0, "port": 0, "cache_dir": tmp_path / "cache"}
    return GeneratorSettings.model_validate(common | {"output_path": tmp_path / "out"} | fields)


def states(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["name"], one["state"]) for one in found["files"]]


def test_a_guarded_start_that_would_fetch_everything(tmp_path: Path, hub: StubHub) -> None:
    found = dry_run(settings(tmp_path))
    guards = [(GUARDRAIL_1_0.repo, "to fetch"), (QWEN_GUARD.repo, "to fetch")]
    assert states(found) == [*guards, (NANO.repo, "to fetch")]
    assert found["guardrails"] is True and found["engine"] == "diffusers"
    assert hub.downloads() == [], "a dry run downloads nothing"
    assert not (tmp_path / "out").exists() and not (tmp_path / "hf").exists()


def test_what_is_in_the_cache_is_verified(tmp_path: Path, hub: StubHub) -> None:
    prove_guardrails("diffusers", revision=REVISION_1_0, cache_dir=tmp_path / "cache")
    assert states(dry_run(settings(tmp_path)))[0] == (GUARDRAIL_1_0.repo, "verified")
    (word,) = (tmp_path / "hf").rglob("snapshots/*/blocklist/custom/words")
    word.resolve().write_bytes(b"otherword\n"[: len(word.read_bytes())])
    with pytest.raises(Cosmos3Error) as refused:
        dry_run(settings(tmp_path))
    assert refused.value.stable_code == "guardrail_cache_altered"


def test_the_framework_engines_other_files_are_asked_for(
    tmp_path: Path, hub: StubHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "prepare_framework", lambda settings: None)
    wanted = settings(tmp_path, engine="framework", guardrail_revision=None)
    found = states(dry_run(wanted))
    assert [name for name, _ in found] == [GUARDRAIL1.repo, QWEN_GUARD.repo, NANO.repo, WAN_VAE.repo]
    prove_checkpoint_asset(WAN_VAE, Hub.from_environ(os.environ), HashCache(tmp_path / "hashes.json"))
    assert states(dry_run(wanted))[-1] == (WAN_VAE.repo, "verified")
    shutil.rmtree(tmp_path / "hf")
    del hub.repos[WAN_VAE.repo]
    with pytest.raises(Cosmos3Error) as refused:
        dry_run(wanted)
    assert refused.value.stable_code == "checkpoint_not_found" and "autoencoder" in refused.value.detail


@pytest.mark.parametrize(
    ("fields", "environ", "code", "exit_code"),
    [
        ({}, {"NPA_COSMOS3_RAY_TOKEN": ""}, "token_missing", 3),
        ({}, {"NPA_IMAGE_SOURCE_SHA": "not-a-commit"}, "source_revision", 3),
        ({"output_path": Path("/proc/out")}, {}, "output_root", 3),
        ({"allowed_s3_roots": "s3://"}, {}, None, 2),
        ({"defaults_file": Path("/nowhere.json")}, {}, "defaults_file", 3),
        ({"parallelism_preset": "latency"}, {}, "setting_ignored", 2),
        ({"guardrail_revision": None}, {}, "guardrail_revision_missing", 3),
        ({}, {"HF_TOKEN": ""}, "access_token_missing", 3),
        ({}, {"HF_TOKEN": OTHER_TOKEN}, "access_denied", 3),
        ({}, {"HF_HUB_OFFLINE": "1"}, "guardrail_cache_empty", 3),
        ({"guardrails": False, "guardrail_revision": None}, {"HF_HUB_OFFLINE": "1"}, "checkpoint_offline", 3),
        ({}, {"RAY_AUTH_MODE": "none"}, "ray_auth_mode", 3),
        ({"ray_address": "127.0.0.1:9"}, {}, "ray_unreachable", 3),
        ({"checkpoint": "org/none"}, {}, "checkpoint_not_found", 3),
        ({"checkpoint": "/no/such/folder"}, {}, "usage", 2),
        ({"checkpoint": "no such thing"}, {}, "usage", 2),
    ],
)
def test_refusals(
    fields: dict[str, object],
    environ: dict[str, str],
    code: str | None,
    exit_code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Cosmos3Error) as refused:
        dry_run(settings(tmp_path, **fields))
    assert refused.value.exit_code == exit_code and code in (None, refused.value.stable_code)
    assert not (tmp_path / "out").exists()


def test_missing_packages_of_the_guardrails_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real look for packages; nothing else is asked before it
    monkeypatch.setenv("NPA_COSMOS3_RAY_TOKEN", "right-token-123")
    monkeypatch.setenv("NPA_IMAGE_SOURCE_SHA", "a" * 40)
    monkeypatch.setattr("cosmos3_serve.generator.guardrails.packages.find_spec", lambda name: None)
    monkeypatch.setattr(module.require_packages, "__defaults__", (lambda name: None,))
    with pytest.raises(Cosmos3Error) as refused:
        dry_run(settings(tmp_path))
    assert refused.value.stable_code == "guardrail_package_missing"


def test_a_root_in_use_and_a_port_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "PORT_WAIT_S", 0.0)
    root = tmp_path / "out"
    holder = RootLock(root)
    with pytest.raises(Cosmos3Error) as refused:
        dry_run(settings(tmp_path))
    assert refused.value.stable_code == "output_root_in_use"
    holder.release()
    dry_run(settings(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(Cosmos3Error) as refused:
        dry_run(settings(tmp_path, host="127.0.0.1", port=other.getsockname()[1]))
    assert refused.value.stable_code == "port_unavailable"
