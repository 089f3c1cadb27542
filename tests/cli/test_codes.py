"""The list of specific codes forgets none, and says of each what the failure itself would say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cosmos3_serve.cli import codes
from cosmos3_serve.cli.codes import PACKAGE, PASSED_ON, code_rows, families, places

PAGE = (PACKAGE.parents[1] / "docs" / "errors.md").read_text(encoding="utf-8")
WRITTEN = re.compile(r"\bcode=\"([a-z0-9_]+)\"|\b(?:bad|too_large|unsupported|broken)\(\s*\"([a-z0-9_]+)\"")


def test_a_code_that_cannot_be_read_is_another_failures_and_named_as_such() -> None:
    """A new one must be written so that it can be read here, or be declared; one that went must go there too."""
    assert {(place.file, place.text) for place in places() if place.code is None} == PASSED_ON | set(families())


def test_every_code_that_stands_in_the_source_stands_on_the_page() -> None:
    """Found by its letters alone, so that the reader of syntax trees is not judged by itself."""
    written = {
        first or second
        for path in PACKAGE.rglob("*.py")
        for first, second in WRITTEN.findall(path.read_text(encoding="utf-8"))
    }
    assert len(written) > 140
    assert sorted(code for code in written if f"`{code}`" not in PAGE) == []


def test_every_row_has_a_code_and_a_class() -> None:
    assert [row for row in code_rows() if not row["code"] or not row["class"]] == []


@pytest.mark.parametrize(
    ("code", "kind", "http", "exit_code", "remedy"),
    [
        ("storage_denied", "StorageFailure", "502", "4", "check AWS_ACCESS_KEY_ID"),
        ("media_too_large", "LimitExceeded", "413", "2", "send less"),
        ("source_revision", "StartRefused", "", "3", "set NPA_IMAGE_SOURCE_SHA"),
        ("replica_lost", "EngineFailed", "500", "4", "send the request again"),
        ("replica_lost", "NotReady", "503", "3", ""),
        ("samples_failed", "Incomplete", "", "5", "--allow-partial"),
        ("too_few_gpus", "StartRefused", "", "3", "use --workers …, or join a cluster"),
    ],
)
def test_rows(code: str, kind: str, http: str, exit_code: str, remedy: str) -> None:
    (row,) = [row for row in code_rows() if (row["code"], row["class"]) == (code, kind)]
    assert (row["HTTP"], row["exit"]) == (http, exit_code) and remedy in row["remedy"]


def test_a_code_that_hides_is_found_out(tmp_path: Path) -> None:
    package = tmp_path / "cosmos3_serve"
    package.mkdir()
    (package / "a.py").write_text(
        "KNOWN = 'known'\n"
        "def f(x):\n"
        "    raise NotFound('no', code=KNOWN if x else 'other', remedy=f'try {x}')\n"
        "def g(x):\n"
        "    raise NotFound('no', code=x.upper())\n"
    )
    found = codes.places.__wrapped__(package)
    assert [(p.code, p.text, p.remedy) for p in found] == [
        ("known", "KNOWN if x else 'other'", "try …"),
        ("other", "KNOWN if x else 'other'", "try …"),
        (None, "x.upper()", ""),
    ]
