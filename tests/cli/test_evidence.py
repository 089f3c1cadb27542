"""`evidence export` on the command line, in both trees."""

import json
from pathlib import Path

import pytest
from support.publication import IMAGE, sample, write_publication

from cosmos3_serve.cli import main


def test_export_and_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_publication(tmp_path / "pub", [sample("still", IMAGE)])
    words = ["evidence", "export", str(tmp_path / "pub"), "--output", str(tmp_path / "e.json")]
    assert main.run(main.build(), "cosmos3", words) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "e.json")
    assert main.run(main.build_npa(), "npa", ["workbench", "cosmos3", *words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["record"] == json.loads((tmp_path / "e.json").read_text())
    assert main.run(main.build(), "cosmos3", [*words[:3], "-o", str(tmp_path / "e.txt")]) == 2
    assert main.run(main.build(), "cosmos3", ["evidence", "export", str(tmp_path / "no")]) == 2
    (tmp_path / "pub" / "request.json").write_text("{}")
    assert main.run(main.build(), "cosmos3", [*words, "--json"]) == 4
