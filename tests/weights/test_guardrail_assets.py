"""What the guardrails need, proved before anything starts. Hub: a stub, with stand-ins for the gated repositories."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.guardrail_hub import REVISION_1_0, guardrail_repos
from support.hub import GOOD_TOKEN, OTHER_TOKEN, StubHub, stub_hub

from cosmos3_serve.errors import GuardrailsUnavailable
from cosmos3_serve.weights import guardrail_assets as module
from cosmos3_serve.weights import manifest
from cosmos3_serve.weights.assets import GUARDRAIL1, GUARDRAIL_1_0, QWEN_GUARD
from cosmos3_serve.weights.guardrail_assets import GuardrailFiles, prove_guardrails

Prove = Callable[..., GuardrailFiles]


@pytest.fixture
def hub() -> Iterator[StubHub]:
    with stub_hub(guardrail_repos()) as stub:
        yield stub


@pytest.fixture(autouse=True)
def neither_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the tests may have loaded Ray long ago; a service has not."""
    monkeypatch.setattr(module, "export", lambda target, environ: environ.__setitem__("NLTK_DATA", str(target)))


@pytest.fixture
def prove(hub: StubHub, tmp_path: Path) -> Prove:
    def proved(token: str = GOOD_TOKEN, engine: str = "diffusers", revision: str | None = REVISION_1_0, **more: str):
        environ = {"HF_HOME": str(tmp_path / "hf"), **hub.environ(token), **more}
        return prove_guardrails(engine, revision=revision, cache_dir=tmp_path / "cache", environ=environ)  # type: ignore[arg-type]

    return proved


def refused(call: Callable[[], object]) -> GuardrailsUnavailable:
    with pytest.raises(GuardrailsUnavailable) as caught:
        call()
    assert caught.value.exit_code == 3 and caught.value.remedy
    assert GOOD_TOKEN not in str(caught.value.as_problem())
    return caught.value


@pytest.mark.parametrize(
    ("engine", "revision", "repo"),
    [("framework", GUARDRAIL1.revision, GUARDRAIL1.repo), ("diffusers", REVISION_1_0, GUARDRAIL_1_0.repo)],
)
def test_all_is_proved(prove: Prove, hub: StubHub, tmp_path: Path, engine: str, revision: str, repo: str) -> None:
    files = prove(engine=engine)
    assert (files.repo, files.revision, files.entitlement) == (repo, revision, "granted")
    assert (files.text_repo, files.text_revision) == (QWEN_GUARD.repo, QWEN_GUARD.revision)
    for path in (files.snapshot, files.text_snapshot, files.nltk_data):
        assert path.is_relative_to(tmp_path / "hf") and any(path.iterdir())
    assert not any("safety_filter.pt" in path for path in hub.downloads())  # the probe file is asked for, not fetched
    first = hub.asked[0]
    assert (first[0], "/resolve/" in first[1]) == ("HEAD", True)  # the entitlement before any fetch


def test_offline_afterwards_asks_nobody(prove: Prove, hub: StubHub) -> None:
    first = prove()
    asked = len(hub.asked)
    again = prove(HF_HUB_OFFLINE="1")
    assert again.entitlement == "offline" and again.snapshot == first.snapshot
    assert len(hub.asked) == asked


@pytest.mark.parametrize(
    ("token", "offline", "code"),
    [
        ("", "0", "access_token_missing"),
        ("", "1", "access_token_missing"),
        (OTHER_TOKEN, "0", "access_denied"),
        ("hf_revoked", "0", "access_token_refused"),
    ],
)
def test_tokens_even_with_a_full_cache(prove: Prove, token: str, offline: str, code: str) -> None:
    prove()
    assert refused(lambda: prove(token, HF_HUB_OFFLINE=offline)).stable_code == code


def test_nothing_is_fetched_without_an_entitlement(prove: Prove, hub: StubHub, tmp_path: Path) -> None:
    for token in ("", OTHER_TOKEN):
        refused(lambda token=token: prove(token))
    assert hub.downloads() == [] and not (tmp_path / "hf").exists()


@pytest.mark.parametrize("revision", [None, "", "main", "5" * 39])
def test_the_diffusers_engine_wants_a_reviewed_revision(prove: Prove, hub: StubHub, revision: str | None) -> None:
    error = refused(lambda: prove(revision=revision))
    assert error.stable_code == "guardrail_revision_missing"
    assert hub.asked == []


def snapshots(tmp_path: Path, repo: str) -> Path:
    (found,) = (tmp_path / "hf" / "hub" / f"models--{repo.replace('/', '--')}" / "snapshots").iterdir()
    return found


def empty(snapshot: Path) -> None:
    shutil.rmtree(snapshot)
    snapshot.mkdir()


def half(snapshot: Path) -> None:
    next(p for p in sorted(snapshot.rglob("*")) if not p.is_dir()).unlink()


def change(snapshot: Path) -> None:
    file = next(p for p in sorted(snapshot.rglob("*")) if not p.is_dir()).resolve()
    before, data = file.stat(), bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def add(snapshot: Path) -> None:
    (snapshot / "more.json").write_text("{}")


def forget(snapshot: Path) -> None:
    shutil.rmtree(snapshot.parents[3] / "cosmos3-payload")


@pytest.mark.parametrize("repo", [GUARDRAIL_1_0.repo, QWEN_GUARD.repo])
@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (shutil.rmtree, "guardrail_cache_empty"),
        (empty, "guardrail_cache_empty"),
        (half, "guardrail_cache_incomplete"),
        (change, "guardrail_cache_altered"),
        (add, "guardrail_cache_altered"),
        (forget, "guardrail_cache_unverified"),
    ],
)
def test_a_damaged_cache_refuses(
    prove: Prove, tmp_path: Path, repo: str, damage: Callable[[Path], None], code: str
) -> None:
    prove()
    damage(snapshots(tmp_path, repo))
    assert refused(lambda: prove(HF_HUB_OFFLINE="1")).stable_code == code


def test_a_changed_byte_refuses_online_as_well(prove: Prove, tmp_path: Path) -> None:
    prove()
    change(snapshots(tmp_path, GUARDRAIL_1_0.repo))
    assert refused(prove).stable_code == "guardrail_cache_altered"


def test_a_half_filled_cache_is_filled_where_the_hub_answers(prove: Prove, tmp_path: Path) -> None:
    prove()
    half(snapshots(tmp_path, GUARDRAIL_1_0.repo))
    prove()


def test_an_empty_machine_offline(prove: Prove) -> None:
    assert refused(lambda: prove(HF_HUB_OFFLINE="1")).stable_code == "guardrail_cache_empty"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("blocklist/custom/words", None),
        ("blocklist/custom/words", b""),
        ("blocklist/exact_match/words", None),
        ("blocklist/exact_match/words", b""),
        (module.FACES, b""),
    ],
)
def test_a_repository_without_what_checks_is_refused(
    prove: Prove, hub: StubHub, name: str, content: bytes | None
) -> None:
    files = hub.repos[GUARDRAIL_1_0.repo].files
    del files[name]
    if content is not None:
        files[name] = content
    error = refused(prove)
    assert error.stable_code == "guardrail_content_missing" and name.rpartition("/")[0] in error.detail


def test_a_repository_without_the_probe_file(prove: Prove, hub: StubHub) -> None:
    del hub.repos[GUARDRAIL_1_0.repo].files[module.FACES]
    assert refused(prove).stable_code == "access_not_found"


def test_altered_tokenizer_data_refuses(prove: Prove) -> None:
    target = prove().nltk_data
    file = next(target.rglob("*.tab"))
    shutil.move(file, target.parent / "elsewhere")
    file.symlink_to(target.parent / "elsewhere")
    assert refused(prove).stable_code == "guardrail_tokenizer_content_invalid"


def test_a_hub_that_is_not_there(prove: Prove) -> None:
    assert refused(lambda: prove(HF_ENDPOINT="http://127.0.0.1:9")).stable_code == "access_hub_unreachable"


def test_large_files_are_hashed_once(prove: Prove, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    real = manifest.sha256_file
    monkeypatch.setattr(manifest, "sha256_file", lambda path, on_bytes=None: hashed.append(path.name) or real(path))
    prove()
    once = len(hashed)
    prove()
    assert len(hashed) == once > 0
