"""Every refusal that comes before Ray, each with its own code and exit code 3 or 2."""

import errno
from pathlib import Path

import pytest

from cosmos3_serve.errors import Cosmos3Error, StartRefused
from cosmos3_serve.generator import prepare as module
from cosmos3_serve.generator.ledger.files import RootLock
from cosmos3_serve.generator.prepare import prepare
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.weights.checkpoint import Checkpoint


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NPA_COSMOS3_RAY_TOKEN", "right-token-123")
    monkeypatch.delenv("NPA_COSMOS3_RAY_TOKEN_FILE", raising=False)
    monkeypatch.setenv("NPA_IMAGE_SOURCE_SHA", "a" * 40)
    resolved = Checkpoint(path=tmp_path, id="tiny", revision="seed-0", digest="d", weights="random")
    monkeypatch.setattr(module, "resolve_checkpoint", lambda text, cache, framework: resolved)


def settings(tmp_path: Path, **fields: object) -> GeneratorSettings:
    return GeneratorSettings.model_validate(
        {"engine": "diffusers", "guardrails": False, "checkpoint": "tiny", "output_path": tmp_path / "out"} | fields
    )


def test_what_is_fine_comes_back_with_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prepared = prepare(settings(tmp_path, output_path=Path("out"), cache_dir=Path("cache")))
    ready = prepared.settings
    assert ready.output_path == tmp_path / "out" and ready.output_path.is_dir()
    assert ready.cache_dir == tmp_path / "cache"
    assert prepared.checkpoint.id == "tiny" and prepared.revision == "a" * 40
    assert (prepared.guardrails, prepared.upstream, prepared.assets) == (None, None, ())


@pytest.mark.parametrize(
    ("fields", "environ", "code", "exit_code"),
    [
        ({"engine": "framework"}, {}, "framework_missing", 3),
        ({"engine": None}, {}, "engine_not_found", 3),
        ({"guardrails": True}, {}, "guardrail_package_missing", 3),
        ({}, {"NPA_COSMOS3_RAY_TOKEN": ""}, "token_missing", 3),
        ({}, {"NPA_COSMOS3_RAY_TOKEN": "has blank inside"}, "token_invalid", 3),
        ({}, {"NPA_IMAGE_SOURCE_SHA": "not-a-commit"}, "source_revision", 3),
        ({"output_path": Path("/proc/out")}, {}, "output_root", 3),
        ({"model": "a#b"}, {}, "usage", 2),
        ({"world_size": 2}, {}, "usage", 2),
        ({"engine": "framework", "world_size": 2}, {}, "parallelism", 2),
        ({"allowed_s3_roots": "s3://"}, {}, None, 2),
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
        prepare(settings(tmp_path, **fields))
    assert refused.value.exit_code == exit_code
    assert code is None or refused.value.stable_code == code
    assert refused.value.remedy or code is None


def test_a_gpu_that_is_no_target_is_refused_unless_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = [{"name": "NVIDIA A100", "compute_capability": "8.0", "driver": "1"}]
    monkeypatch.setattr(module, "accelerators", lambda: old)
    with pytest.raises(Cosmos3Error) as refused:
        prepare(settings(tmp_path))
    assert (refused.value.stable_code, refused.value.exit_code) == ("unsupported_gpu", 3)
    prepare(settings(tmp_path, device="cpu"))
    prepare(settings(tmp_path, force_unsupported_gpu=True))


def test_without_the_framework_its_refusal_has_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(Cosmos3Error) as refused:
        prepare(settings(tmp_path, engine="framework"))
    assert "pip install" in refused.value.remedy and "cosmos-framework" in refused.value.remedy


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the guardrails' packages were installed; nothing here imports them."""
    monkeypatch.setattr(module, "require_packages", lambda engine: None)


def test_guardrails_are_proved_before_the_checkpoint_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: None
) -> None:
    monkeypatch.setattr(module, "resolve_checkpoint", lambda text, cache, framework: pytest.fail("fetched"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(Cosmos3Error) as refused:
        prepare(settings(tmp_path, guardrails=True))
    assert refused.value.stable_code == "guardrail_revision_missing"
    with pytest.raises(Cosmos3Error) as refused:
        prepare(settings(tmp_path, guardrails=True, guardrail_revision="5" * 40))
    assert (refused.value.stable_code, refused.value.exit_code) == ("access_token_missing", 3)


def test_proved_guardrails_are_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: None) -> None:
    monkeypatch.setattr(module, "prove_guardrails", lambda engine, **given: (engine, given))
    ready = prepare(settings(tmp_path, guardrails=True, guardrail_revision="5" * 40, cache_dir=tmp_path / "c"))
    assert ready.guardrails == ("diffusers", {"revision": "5" * 40, "cache_dir": tmp_path / "c"})


def test_a_full_output_root_that_was_in_use_is_no_reason_against_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention makes room once the ledger is open; a fresh one has nothing to remove."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    root = tmp_path / "out"
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StartRefused):
        module._writable(root, keep=True)
    (root / ".cosmos3" / "lock").touch()
    assert module._writable(root, keep=True) == root


def test_a_root_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    holder = RootLock(tmp_path / "out")
    with pytest.raises(StartRefused) as caught:
        prepare(settings(tmp_path))
    assert (caught.value.stable_code, caught.value.exit_code) == ("output_root_in_use", 3)
    holder.release()
    prepare(settings(tmp_path))
