"""`cosmos3 deploy` on the command line: what is printed, what is written, exit codes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import yaml
from support.manifests import DYNAMO_SET, ROOT

from cosmos3_serve.cli import main

CRDS = ROOT / "tests" / "deploy" / "crds"
WHOLE = ROOT / "recipes/cosmos3-nano-reasoner/vllm/agg-h200-round-robin/deploy.yaml"
SETS = [word for text in DYNAMO_SET for word in ("--set", text)]


def run(*argv: str) -> int:
    return main.run(main.build(), "cosmos3", ["deploy", *argv])


def render(*argv: str) -> int:
    return run("render", "--target", "dynamo", *argv)


def test_one_part_is_printed_as_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    assert render("--profile", "round-robin", "--part", "deploy") == 0
    (document,) = yaml.safe_load_all(capsys.readouterr().out)
    assert document["metadata"]["name"] == "cosmos3-nano-reasoner-agg-h200-round-robin"


def test_everything_printed_is_one_stream_of_documents(capsys: pytest.CaptureFixture[str]) -> None:
    assert render() == 0
    assert len([d for d in yaml.safe_load_all(capsys.readouterr().out) if d]) == 10


def test_the_same_command_under_npa() -> None:
    argv = ["workbench", "cosmos3", "deploy", "render", "--target", "dynamo", "--values-help"]
    assert main.run(main.build_npa(), "npa", argv) == 0


def test_files_are_written_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"worker": {"replicas": 2}, "images": {"client": "registry.example/other"}}))
    assert render(*SETS, "--values", str(values), "--check", "--output", str(tmp_path / "out"), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["checked"] == 10 and len(told["files"]) == 8
    for each in told["files"]:
        assert list(yaml.safe_load_all((tmp_path / "out" / each["path"]).read_text())) == each["objects"]
    (graph,) = yaml.safe_load_all((tmp_path / "out/vllm/agg-h200-round-robin/deploy.yaml").read_text())
    assert graph["spec"]["components"][1]["replicas"] == 2
    assert "registry.example/cosmos3-client" in (tmp_path / "out/perf/smoke.yaml").read_text()  # --set wins
    assert run("check", *(str(tmp_path / "out" / each["path"]) for each in told["files"])) == 0


def test_a_placeholder_is_refused_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert render("--check", "--output", str(tmp_path / "out"), "--json") == 3
    told = json.loads(capsys.readouterr().out)
    assert told["code"] == "manifest_invalid" and {e["remedy"] for e in told["errors"]} == {"placeholder"}
    assert not (tmp_path / "out").exists()


def test_a_storage_class_is_all_it_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--set", "cache.storage_class=x", "--check", "--crds", str(CRDS)]
    assert render(*argv, "--output", str(tmp_path / "out"), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["checked"] == 10 and all((tmp_path / "out" / each["path"]).is_file() for each in told["files"])
    assert told["unfinished"] == {"perf/smoke.yaml": ["images.client"], "perf/perf.yaml": ["images.client"]}
    assert render(*argv, "--output", str(tmp_path / "out")) == 0
    said = capsys.readouterr()
    assert "perf/smoke.yaml: set images.client before you apply it" in said.err and "perf/smoke" in said.out
    # Asked for by name it must be whole, and a file is checked as it is.
    assert render(*argv, "--part", "perf", "--output", str(tmp_path / "perf")) == 3
    assert not (tmp_path / "perf").exists() and run("check", str(tmp_path / "out/perf/smoke.yaml")) == 3


def test_a_file_is_checked_against_the_operators_definition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = tmp_path / "deploy.yaml"
    assert render("--profile", "round-robin", "--part", "deploy") == 0
    text = capsys.readouterr().out
    graph.write_text(text)
    assert run("check", str(graph), "--crds", str(CRDS)) == 0
    # Our condensed schema leaves this group open; the operator's own definition does not.
    graph.write_text(text.replace("      type: worker\n", "      type: worker\n      experimental: {nonsense: 1}\n"))
    capsys.readouterr()
    assert run("check", str(graph)) == 0
    assert run("check", str(graph), "--crds", str(CRDS), "--json") == 3
    assert "nonsense" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["render", "--target", "helm"], "deploy_unknown_target"),
        (["render", "--target", "dynamo", "--profile", "random"], "deploy_unknown_profile"),
        (["render", "--target", "dynamo", "--set", "worker.gpus=2"], "deploy_unknown_key"),
        (["render", "--target", "dynamo", "--set", "worker.replicas=many"], "deploy_bad_value"),
        (["render", "--target", "dynamo", "--set", "worker"], "deploy_set_malformed"),
        (["render", "--target", "dynamo", "--values", "missing.yaml"], "deploy_values_file"),
        (["render", "--target", "dynamo", "--part", "everything"], "deploy_unknown_part"),
        (["render", "--target", "kuberay"], "deploy_unknown_service"),
        (["render", "--target", "dynamo", "--service", "generator"], "deploy_unknown_service"),
        (["render", "--target", "kuberay", "--service", "reasoner", "--set", "settings.port=1"], "deploy_unknown_key"),
        (["render"], "usage"),
        (["check", "missing.yaml"], "manifest_unreadable"),
        (["check", str(WHOLE), "--crds", "missing.yaml"], "crds_unreadable"),
        (["check", str(WHOLE), "--crds", str(WHOLE)], "crds_unreadable"),
        (["diff", "missing.yaml", "--target", "dynamo"], "manifest_unreadable"),
    ],
)
def test_bad_input_is_named_and_exits_2(argv: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*argv, "--json") == 2
    told = json.loads(capsys.readouterr().out)
    assert told["code"] == code and told["exit_code"] == 2


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert render("--output", str(tmp_path / "file"), "--json") == 2
    assert json.loads(capsys.readouterr().out)["code"] == "deploy_not_written"


def test_diff_against_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert render("--output", str(tmp_path)) == 0
    stored = tmp_path / "vllm/agg-h200-session-affinity/deploy.yaml"
    argv = ["diff", str(stored), "--target", "dynamo", "--profile", "session-affinity"]
    capsys.readouterr()
    assert run(*argv) == 0 and capsys.readouterr().out == "no difference\n"
    assert run(*argv, "--set", "affinity.ttl_s=60", "--json") == 3
    told = json.loads(capsys.readouterr().out)
    assert not told["equal"]
    assert [(d["there"], d["rendered"]) for d in told["differences"]] == [("300", "60")]


def test_diff_reads_the_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("kind: Pod\napiVersion: v1\nmetadata: {name: x}\n"))
    assert run("diff", "-", "--target", "dynamo", "--json") == 2
    assert json.loads(capsys.readouterr().out)["code"] == "diff_nothing_in_common"


def test_the_keys_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert render("--values-help") == 0
    assert "| `affinity.ttl_s` | `300` |" in capsys.readouterr().out
    assert render("--values-help", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["values"]) > 30
