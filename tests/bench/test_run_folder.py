"""A run on disk: kept once, concluded once, read back without what was concluded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cosmos3_serve.bench.run_folder import RUN, RunFolder
from cosmos3_serve.bench.validity import Finding
from cosmos3_serve.errors import InputError


def folder(path: Path) -> RunFolder:
    return RunFolder(path, "things.jsonl", figures=("sum",))


def test_figures_are_written_of_a_valid_run_only(tmp_path: Path) -> None:
    for findings in ([], [Finding("wrong", "it is wrong")]):
        here = folder(tmp_path / str(len(findings)))
        here.keep(["{}", "{}"])
        here.conclude({"name": "n"}, findings, {"sum": 3})
        head = json.loads((here.directory / RUN).read_text())
        assert head["valid"] is not bool(findings)
        assert ("sum" in head) is not bool(findings)
        assert here.restore(lambda head, lines: (head, len(list(lines)))) == ({"name": "n"}, 2)


@pytest.mark.parametrize("name", [RUN, "things.jsonl"])
def test_a_run_is_never_replaced_even_where_it_was_cut_short(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(InputError) as refused:
        folder(tmp_path).keep(["{}"])
    assert refused.value.stable_code == "run_exists"


@pytest.mark.parametrize("head", ["", "[]", "{", '"text"'])
def test_what_is_no_run_says_so(tmp_path: Path, head: str) -> None:
    (tmp_path / RUN).write_text(head)
    (tmp_path / "things.jsonl").write_text("{}\n")
    with pytest.raises(InputError) as refused:
        folder(tmp_path).restore(lambda head, lines: None)
    assert refused.value.stable_code == "run_unreadable"
