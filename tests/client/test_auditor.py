"""The auditor by itself: it knows nothing of the client, and it catches every kind of false publication."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import auditor
from support.auditor import Auditor, generated_twice
from support.baseline_media import jpeg

SAMPLES = [{"name": "a", "prompt": "p"}, {"name": "b", "prompt": "q"}]
STATES = {"r": {"a": "succeeded", "b": "succeeded"}}


class Memory:
    """A place that is a dictionary."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.stored, self.history = objects, dict[str, list[str]]()

    def objects(self) -> dict[str, bytes]:
        return dict(self.stored)

    def versions(self) -> dict[str, list[str]]:
        return self.history


def dump(obj: Any) -> bytes:
    return json.dumps(obj).encode()


@pytest.fixture
def place(tmp_path: Path) -> Memory:
    """A true publication, and beside it what the service made."""
    objects, artifacts = dict[str, bytes](), []
    for name in ("a", "b"):
        path, data = f"r/{name}/vision.jpg", jpeg(64, 48)
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(data)
        objects[f"artifacts/{path}"] = data
        artifacts.append({"sample": name, "path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    objects["request.json"] = dump({"request_id": "r", "samples": SAMPLES})
    objects["response.json"] = dump({"request_id": "r", "artifacts": artifacts})
    manifest = {
        "request_id": "r", "status": "completed", "sample_names": ["a", "b"], "missing": [], "artifacts": artifacts,
        "request_sha256": hashlib.sha256(objects["request.json"]).hexdigest(),
        "response_sha256": hashlib.sha256(objects["response.json"]).hexdigest(),
    }  # fmt: skip
    objects["provenance.json"] = dump(manifest)
    return Memory(objects)


def audit(place: Memory, root: Path, **options: Any) -> list[str]:
    made = Auditor(place, root, {"r": SAMPLES})
    made.look("now", **{"states": STATES, **options})
    return made.faults


def test_a_true_publication_has_no_fault(place: Memory, tmp_path: Path) -> None:
    manifest = json.loads(place.stored["provenance.json"])
    assert audit(place, tmp_path, acks=[manifest], over=True, partial_allowed=False) == []
    assert audit(Memory({"artifacts/r/a/vision.jpg": b"early"}), tmp_path) == []


Change = Callable[[dict[str, bytes]], object]


def edit(**fields: Any) -> Change:
    def change(objects: dict[str, bytes]) -> None:
        objects["provenance.json"] = dump(json.loads(objects["provenance.json"]) | fields)

    return change


def shorter(objects: dict[str, bytes]) -> None:
    manifest = json.loads(objects["provenance.json"])
    edit(artifacts=manifest["artifacts"][:1], missing=["b"], status="partial")(objects)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda o: o.pop("artifacts/r/b/vision.jpg"), "missing: r/b"),
        (lambda o: o.update({"artifacts/r/b/vision.jpg": b"x"}), "altered: r/b"),
        (lambda o: o.update({"artifacts/r/c.jpg": b"x"}), "foreign_object"),
        (lambda o: o.update({"request.json": o["request.json"] + b" "}), "record_differs: request.json"),
        (lambda o: o.pop("response.json"), "record_differs: response.json"),
        (lambda o: o.update({"provenance.json": b""}), "unreadable"),
        (lambda o: o.update({".cosmos3-claims/0001.json": b"{}"}), "left_behind"),
        (edit(missing=["b"]), "coverage: status completed with 1 missing"),
        (edit(status="partial"), "coverage: status partial with 0 missing"),
        (edit(sample_names=["a"]), "coverage: names"),
        (edit(artifacts=[]), "left_out: r/a"),
        (edit(request_id="another"), "foreign_batch"),
        (shorter, "partial, though nobody asked"),
    ],
)
def test_what_is_false_is_named(place: Memory, tmp_path: Path, change: Change, code: str) -> None:
    change(place.stored)
    assert any(code in fault for fault in audit(place, tmp_path, over=True, partial_allowed=False))


def test_what_the_service_did_not_make_is_named_though_its_hash_is_right(place: Memory, tmp_path: Path) -> None:
    (tmp_path / "r/a/vision.jpg").write_bytes(b"another")
    assert "not_what_the_service_made: r/a/vision.jpg" in audit(place, tmp_path)[0]
    failed = audit(place, tmp_path, states={"r": {"a": "succeeded", "b": "failed"}})
    assert any("called_complete: b" in fault for fault in failed)


def test_acknowledgements_are_held_against_what_is_stored(place: Memory, tmp_path: Path) -> None:
    manifest = json.loads(place.stored["provenance.json"])
    assert "told_otherwise" in audit(place, tmp_path, acks=[manifest | {"status": "partial"}])[0]
    assert "acknowledged_but_absent" in audit(Memory({}), tmp_path, acks=[manifest])[0]


def test_a_publication_never_changes(place: Memory, tmp_path: Path) -> None:
    made = Auditor(place, tmp_path, {"r": SAMPLES})
    made.look("first", states=STATES)
    place.history = {"provenance.json": ["x", "x"], "request.json": ["x"], ".cosmos3-probes/p": ["x", "y"]}
    del place.stored["provenance.json"]
    made.look("second", states=STATES)
    assert made.faults == [
        "second: changed: provenance.json",
        "second: overwritten: provenance.json was stored 2 times",
    ]


def test_media_are_decoded() -> None:
    assert auditor.undecodable("v.jpg", jpeg(64, 48)) == ""
    assert auditor.undecodable("v.jpg", b"no") and auditor.undecodable("v.mp4", jpeg(64, 48))
    assert auditor.undecodable("v.txt", b"\xff")


def test_only_what_the_service_interrupted_may_be_made_again() -> None:
    assert generated_twice({"r/a": 2, "r/b": 2, "r/c": 1}, {"r/a": 1}) == ["generated_twice: r/b, 2 times"]


def test_the_auditor_shares_no_code_with_the_product() -> None:
    tree = ast.parse(Path(auditor.__file__).read_text())
    found = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    found |= {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    roots = {name.partition(".")[0] for name in found}
    assert not roots & {"cosmos3_serve", "support"}, found
