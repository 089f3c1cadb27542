"""A dry run of the reasoner refuses what its start refuses, and judges a model that is in place."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest
from support.tiny import tiny_checkpoint

from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.reasoner import prepare as module
from cosmos3_serve.reasoner.dry_run import dry_run
from cosmos3_serve.reasoner.engine.hardware import GIB, Hardware
from cosmos3_serve.reasoner.engine.interpreter import Interpreter
from cosmos3_serve.service import http_server
from cosmos3_serve.settings import REASONER_TOKEN_ENV, REASONER_TOKEN_FILE_ENV, ReasonerSettings


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REASONER_TOKEN_ENV, "a-token-of-some-length")
    monkeypatch.delenv(REASONER_TOKEN_FILE_ENV, raising=False)
    monkeypatch.setenv("NPA_MODEL_CACHE_DISABLED", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(http_server, "PORT_WAIT_S", 0.0)
    monkeypatch.setattr(module, "detect", lambda: Hardware("cpu", cpus=2, host_bytes=8 * GIB))
    monkeypatch.setattr(module, "find_interpreter", lambda named: Interpreter(Path("python"), (0, 32, 0), "vllm"))


def settings(tmp_path: Path, **given: object) -> ReasonerSettings:
    return ReasonerSettings(**{"model": "tiny", "port": 0, "cache_dir": tmp_path / "cache", **given})


def test_what_is_in_place_is_verified_and_what_is_not_is_built(tmp_path: Path) -> None:
    assert dry_run(settings(tmp_path))["files"][0]["state"] == "to build"
    found = dry_run(settings(tmp_path, model=str(tiny_checkpoint().path), routing="round-robin", workers="0:4"))
    assert found["workers"] == "0:4"
    assert (found["files"][0]["state"], found["routing"]) == ("verified", "round-robin")
    assert not (tmp_path / "cache" / "reasoner-media").exists(), "nothing is left behind"


def test_a_model_in_place_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Cosmos3Error) as refused:
        dry_run(settings(tmp_path, model=str(tiny_checkpoint().path), precision="fp8"))
    assert refused.value.stable_code == "precision_unsupported"
    broken = tmp_path / "broken"
    shutil.copytree(tiny_checkpoint().path, broken)
    next(broken.rglob("*.safetensors")).unlink()
    with pytest.raises(Cosmos3Error) as refused:
        dry_run(settings(tmp_path, model=str(broken)))
    assert refused.value.stable_code == "checkpoint_incomplete"


@pytest.mark.parametrize(
    ("given", "environ", "code"),
    [
        ({}, {REASONER_TOKEN_ENV: ""}, "token_missing"),
        ({"session_mode": "hard", "routing": "round-robin"}, {}, "setting_ignored"),
        ({"media_store_bytes": 2**22}, {}, "setting_ignored"),
        ({"vllm_args": ("--port=1",)}, {}, "usage"),
        ({"ray_address": "nowhere"}, {}, "ray_unreachable"),
        ({}, {"RAY_AUTH_MODE": "none"}, "ray_auth_mode"),
        ({"model": "nvidia/Cosmos3-Nano"}, {}, "checkpoint_offline"),
    ],
)
def test_refusals(
    given: dict[str, object], environ: dict[str, str], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"HF_HOME": str(tmp_path / "hf"), **environ}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Cosmos3Error) as refused:
        dry_run(settings(tmp_path, **given))
    assert refused.value.stable_code == code


def test_a_taken_port_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(Cosmos3Error) as refused:
        dry_run(settings(tmp_path, host="127.0.0.1", port=other.getsockname()[1]))
    assert refused.value.stable_code == "port_unavailable"
