"""`review build` on the command line."""

import json
from pathlib import Path

import pytest
from support.publication import IMAGE, sample, write_publication

from cosmos3_serve.cli import main


def run(*argv: str) -> int:
    return main.run(main.build(), "cosmos3", ["review", "build", *argv])


def test_paths_and_remarks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_publication(tmp_path / "a", [sample("still", IMAGE)])
    arguments = [str(tmp_path / "a"), "--output", str(tmp_path / "r"), "--no-rrd", "--note", "still=too blue"]
    assert run(*arguments) == 0
    out, err = capsys.readouterr()
    assert out.split() == [str(tmp_path / "r" / name) for name in ("contact-sheet.png", "index.html")]
    assert "still: note: too blue" in err
    assert run(*arguments, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["samples"], said["recording"], said["remarks"]) == (1, None, {"still": ["note: too blue"]})


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_publication(tmp_path / "a", [sample("still", IMAGE)])
    (tmp_path / "a" / "request.json").write_text("{}")
    assert run(str(tmp_path / "a"), "-o", str(tmp_path / "r"), "--json") == 4
    assert json.loads(capsys.readouterr().out)["code"] == "publication_damaged"
    assert run(str(tmp_path / "none"), "-o", str(tmp_path / "r")) == 2
    assert run(str(tmp_path / "a"), "-o", "s3://bucket/x") == 2
    assert run() == 2
