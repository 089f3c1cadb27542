"""The tokenizer data: copied once as regular files, verified ever after, refused by category. Hub: a stub."""

import hashlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.hub import GOOD_TOKEN, OTHER_TOKEN, Repo, StubHub, stub_hub

from cosmos3_serve.errors import GuardrailsUnavailable
from cosmos3_serve.weights import nltk_data as module
from cosmos3_serve.weights.assets import GUARDRAIL1
from cosmos3_serve.weights.hub_env import Hub
from cosmos3_serve.weights.manifest import HashCache
from cosmos3_serve.weights.nltk_data import MARKER, adopt, check, export, materialize

FILES = {
    "blocklist/nltk_data/tokenizers/punkt_tab/english/collocations.tab": b"stub tokens",
    "blocklist/nltk_data/corpora/wordnet.zip": b"stub zip",
    "blocklist/custom/words": b"not part of it",
}


@pytest.fixture
def hub() -> Iterator[StubHub]:
    with stub_hub({GUARDRAIL1.repo: Repo(GUARDRAIL1.revision, dict(FILES), gated=True)}) as stub:
        yield stub


@pytest.fixture
def make(hub: StubHub, tmp_path: Path) -> Callable[..., Path]:
    def made(token: str = GOOD_TOKEN, **environ: str) -> Path:
        env = {"HF_HOME": str(tmp_path / "hf"), **hub.environ(token), **environ}
        return materialize(GUARDRAIL1, Hub.from_environ(env), HashCache(tmp_path / "hashes.json"))

    return made


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(GuardrailsUnavailable) as caught:
        call()
    assert caught.value.exit_code == 3 and caught.value.remedy
    assert "/tmp" not in caught.value.detail
    return caught.value.stable_code.removeprefix("guardrail_tokenizer_")


def test_regular_read_only_files_and_a_marker(make: Callable[..., Path], tmp_path: Path) -> None:
    target = make()
    assert target == tmp_path / "hf" / "npa-guardrail-nltk-data" / GUARDRAIL1.revision
    found = {p.relative_to(target).as_posix(): p for p in target.rglob("*") if not p.is_dir()}
    names = {n.removeprefix("blocklist/nltk_data/"): d for n, d in FILES.items() if "nltk_data" in n}
    assert set(found) == {*names, MARKER}
    for path in found.values():
        mode = path.lstat()
        assert stat.S_ISREG(mode.st_mode) and mode.st_nlink == 1 and stat.S_IMODE(mode.st_mode) == 0o444
    record = json.loads(found[MARKER].read_text())
    files = {n: {"sha256": hashlib.sha256(d).hexdigest(), "size": len(d)} for n, d in names.items()}
    compact = json.dumps(files, sort_keys=True, separators=(",", ":"))
    assert record == {
        "schema": "npa.cosmos.guardrail_nltk.v1",
        "repo_id": GUARDRAIL1.repo,
        "revision": GUARDRAIL1.revision,
        "file_count": 2,
        "files": files,
        "tree_sha256": hashlib.sha256(compact.encode()).hexdigest(),
    }
    assert [p.name for p in target.parent.iterdir()] == [target.name]  # no partial folder is left


def test_the_cache_it_was_copied_from_has_links_and_keeps_them(make: Callable[..., Path], tmp_path: Path) -> None:
    make()
    cached = list((tmp_path / "hf" / "hub").rglob("*.tab"))
    assert cached and all(p.is_symlink() for p in cached)


def test_what_is_there_is_verified_without_asking_anybody(make: Callable[..., Path], hub: StubHub) -> None:
    first = make()
    asked = len(hub.asked)
    assert make() == first
    assert make("", HF_HUB_OFFLINE="1") == first
    assert len(hub.asked) == asked


def change_a_byte(target: Path) -> None:
    file = next(target.rglob("*.tab"))
    before = file.stat()
    file.chmod(0o644)
    file.write_bytes(b"stub tokenz")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def lose_a_file(target: Path) -> None:
    next(target.rglob("*.tab")).unlink()


def add_a_file(target: Path) -> None:
    (target / "more").write_bytes(b"x")


def link_a_file(target: Path) -> None:
    file = next(target.rglob("*.tab"))
    shutil.move(file, target.parent / "elsewhere")
    file.symlink_to(target.parent / "elsewhere")


def link_a_folder(target: Path) -> None:
    shutil.move(target / "corpora", target.parent / "corpora")
    (target / "corpora").symlink_to(target.parent / "corpora")


def link_it_hard(target: Path) -> None:
    os.link(next(target.rglob("*.tab")), target.parent / "second-name")


def make_a_pipe(target: Path) -> None:
    os.mkfifo(target / "pipe")


def link_all(target: Path) -> None:
    shutil.move(target, target.parent / "moved")
    target.symlink_to(target.parent / "moved")


def dangle(target: Path) -> None:
    shutil.rmtree(target)
    target.symlink_to(target.parent / "nowhere")


def link_the_marker(target: Path) -> None:
    shutil.move(target / MARKER, target.parent / "marker")
    (target / MARKER).symlink_to(target.parent / "marker")


def lose_the_marker(target: Path) -> None:
    (target / MARKER).unlink()


def empty(target: Path) -> None:
    shutil.rmtree(target)
    target.mkdir()


def rewrite(**fields: object) -> Callable[[Path], None]:
    def change(target: Path) -> None:
        record = json.loads((target / MARKER).read_text())
        (target / MARKER).chmod(0o644)
        (target / MARKER).write_text(json.dumps(record | fields))

    return change


@pytest.mark.parametrize(
    ("damage", "category"),
    [
        (change_a_byte, "content_invalid"),
        (lose_a_file, "content_invalid"),
        (add_a_file, "content_invalid"),
        (link_a_file, "content_invalid"),
        (link_a_folder, "content_invalid"),
        (link_it_hard, "content_invalid"),
        (make_a_pipe, "content_invalid"),
        (link_all, "cache_invalid"),
        (dangle, "cache_invalid"),
        (link_the_marker, "cache_invalid"),
        (lose_the_marker, "cache_invalid"),
        (empty, "cache_invalid"),
        (rewrite(revision="b" * 40), "cache_invalid"),
        (rewrite(repo_id="some/other"), "cache_invalid"),
        (rewrite(schema="v0"), "cache_invalid"),
        (rewrite(files={}), "cache_invalid"),
        (rewrite(file_count=3), "cache_invalid"),
        (rewrite(tree_sha256="0" * 64), "cache_invalid"),
    ],
)
def test_damage_refuses_the_start_and_is_never_repaired(
    make: Callable[..., Path], hub: StubHub, damage: Callable[[Path], None], category: str
) -> None:
    damage(make())
    asked = len(hub.asked)
    assert refused(make) == category
    assert refused(make) == category
    assert len(hub.asked) == asked


def hub_without_the_data(hub: StubHub) -> None:
    hub.repos[GUARDRAIL1.repo].files = {"blocklist/custom/words": b"x"}


def hub_that_lies(hub: StubHub) -> None:
    hub.repos[GUARDRAIL1.repo].lies["blocklist/nltk_data/corpora/wordnet.zip"] = b"stub ZIP"


def hub_without_the_revision(hub: StubHub) -> None:
    hub.repos[GUARDRAIL1.repo].revision = "b" * 40


def hub_that_limits(hub: StubHub) -> None:
    hub.status = 429


@pytest.mark.parametrize(
    ("damage", "category"),
    [
        (hub_without_the_data, "content_invalid"),
        (hub_that_lies, "content_invalid"),
        (hub_without_the_revision, "revision_unavailable"),
        (hub_that_limits, "rate_limited"),
    ],
)
def test_a_first_fetch_that_fails(
    make: Callable[..., Path], hub: StubHub, damage: Callable[[StubHub], None], category: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    damage(hub)
    assert refused(make) == category
    folder = tmp_path / "hf" / "npa-guardrail-nltk-data"
    assert not folder.exists() or list(folder.iterdir()) == []


@pytest.mark.parametrize("token", [OTHER_TOKEN, ""])
def test_no_entitlement(make: Callable[..., Path], token: str) -> None:
    assert refused(lambda: make(token)) == "access_denied"


def test_offline_and_empty(make: Callable[..., Path]) -> None:
    assert refused(lambda: make(HF_HUB_OFFLINE="1")) == "network_unavailable"


def test_nowhere_to_write(make: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "hf" / "npa-guardrail-nltk-data").parent.mkdir()
    (tmp_path / "hf" / "npa-guardrail-nltk-data").write_bytes(b"")
    assert refused(make) == "materialization_failed"


def test_who_loses_the_race_uses_the_winners_copy(
    make: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    winner = make()
    shutil.copytree(winner, tmp_path / "kept")
    module.shutil.rmtree(winner)
    real = Path.replace

    def other_first(self: Path, target: Path) -> Path:
        if target == winner and not winner.exists():
            shutil.copytree(tmp_path / "kept", winner)
        return real(self, target)

    monkeypatch.setattr(Path, "replace", other_first)
    assert make() == winner
    assert [p.name for p in winner.parent.iterdir()] == [winner.name]


def test_nltk_data_is_set_first_and_in_time(tmp_path: Path) -> None:
    environ = {"NLTK_DATA": "/old"}
    export(tmp_path, environ, modules=())
    assert environ["NLTK_DATA"] == f"{tmp_path}{os.pathsep}/old"
    export(tmp_path, environ, modules=("nltk", "ray"))  # nothing left to set: nothing to be late for
    assert refused(lambda: export(tmp_path, {}, modules=("nltk",))) == "runtime_invalid"


def test_ray_may_run_already(tmp_path: Path) -> None:
    """Where a cluster's own tools deploy, the start's checks run inside Ray."""
    environ = {"NLTK_DATA": "/cache/nltk"}
    export(tmp_path, environ, modules=("ray",))
    assert environ["NLTK_DATA"] == f"{tmp_path}{os.pathsep}/cache/nltk"


@pytest.mark.parametrize("imported", [False, True])
def test_a_replica_adopts_the_data(imported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NLTK_DATA", "/cache/nltk")
    double = SimpleNamespace(data=SimpleNamespace(path=["/cache/nltk", str(tmp_path)]))
    monkeypatch.setitem(sys.modules, "nltk", double if imported else None)
    adopt(tmp_path)
    assert os.environ["NLTK_DATA"] == f"{tmp_path}{os.pathsep}/cache/nltk"
    if imported:
        assert double.data.path == [str(tmp_path), "/cache/nltk"]


def test_check_reads_all_of_it(make: Callable[..., Path]) -> None:
    check(make(), GUARDRAIL1)
