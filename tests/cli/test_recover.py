"""`batch recover` on the command line, in both trees: exit codes, one JSON object, and words for people."""

import json
from pathlib import Path

import pytest
from support.natives import BATCH, REQUEST, edit, write_batch

from cosmos3_serve.cli import main


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("NPA_COSMOS3_RAY_ENDPOINT", raising=False)
    write_batch(tmp_path / "copy", BATCH[:1])
    (tmp_path / "batch.json").write_text(json.dumps(BATCH[:1]))
    monkeypatch.chdir(tmp_path)


def run(*more: str, tree: str = "cosmos3") -> int:
    words = ["batch", "recover", "--source", "copy", "--input-path", "batch.json", "--request-id", REQUEST, *more]
    if tree == "npa":
        return main.run(main.build_npa(), "npa", ["workbench", "cosmos3", *words])
    return main.run(main.build(), "cosmos3", words)


@pytest.mark.parametrize("tree", ["cosmos3", "npa"])
def test_the_manifest_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str], tree: str) -> None:
    assert run("--output-path", str(tmp_path / "out"), tree=tree) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert manifest["status"] == "recovered"
    assert (tmp_path / "out" / "provenance.json").is_file()
    assert run("--output-path", str(tmp_path / "out"), "--json", tree=tree) == 2
    assert json.loads(capsys.readouterr().out)["code"] == "publication_exists"


def test_a_dry_run_speaks_to_people_and_to_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--output-path", str(tmp_path / "out"), "--dry-run") == 0
    said = capsys.readouterr().out
    assert f"request {REQUEST}: qualified" in said and "256x256" in said and "no record of it" in said
    edit(tmp_path / "copy" / REQUEST / "a" / "sample_args.json", "seed", to=2)
    assert run("--output-path", str(tmp_path / "out"), "--dry-run") == 3
    assert "native_wrong_seed" in capsys.readouterr().out
    assert run("--output-path", str(tmp_path / "out"), "--dry-run", "--json") == 3
    assert json.loads(capsys.readouterr().out)["code"] == "native_wrong_seed"
    assert run("--output-path", str(tmp_path / "out"), "--json") == 3
    problem = json.loads(capsys.readouterr().out)
    assert (problem["code"], problem["exit_code"], problem["errors"][0]["field"]) == (
        "native_wrong_seed",
        3,
        "samples[0]",
    )
    assert not (tmp_path / "out").exists()


def test_what_is_missing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert "--output-path" in capsys.readouterr().err
    assert run("--output-path", "relative") == 2
    assert run("--output-path", "/x", "--source", "nowhere") == 2
    assert "no directory" in capsys.readouterr().err


def test_without_a_source_the_service_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NPA_COSMOS3_RAY_TOKEN", raising=False)
    words = ["batch", "recover", "--input-path", "batch.json", "--request-id", REQUEST, "--output-path", "/x"]
    assert main.run(main.build(), "cosmos3", words) == 2
    assert "no endpoint" in capsys.readouterr().err
    assert main.run(main.build(), "cosmos3", [*words, "--endpoint", "http://127.0.0.1:9"]) == 2
    assert "NPA_COSMOS3_RAY_TOKEN" in capsys.readouterr().err
