"""`golden-eval` on the command line, against doubles; the real service is in tests/e2e/test_golden_eval.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from support.baseline_server import BaselineServer
from support.s3 import LocalS3, keys_of
from support.scenes import SceneServer

from cosmos3_serve.checks.golden_blockworld import ASKED
from cosmos3_serve.cli import main
from cosmos3_serve.cli.options import settings_options
from cosmos3_serve.errors import StartRefused
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.trial.golden_service import _refusal, service_flags, start_ticks

NAME = "cosmos3-ray-serve"
# A double of the framework's service: it says the pin and guardrails, and there is no model behind it.
AS_THE_DOUBLE_IS = "PASS_WEIGHTS_UNKNOWN_GUARDRAILS_UNPROVEN_GPU_UNKNOWN"


def run(*argv: str, npa: bool = False) -> int:
    args = ["golden-eval", *argv]
    return main.run(main.build_npa(), "npa", ["workbench", *args]) if npa else main.run(main.build(), "cosmos3", args)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NPA_COSMOS3_RAY_TOKEN", "support-token")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("NPA_COSMOS3_RAY_ENDPOINT", raising=False)
    monkeypatch.delenv("COSMOS3_ENGINE", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("npa", [False, True], ids=["cosmos3", "npa workbench"])
def test_show_prints_the_entry(npa: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", NAME, npa=npa) == 0
    assert json.loads(capsys.readouterr().out)["name"] == NAME


def evaluate(server: BaselineServer, folder: Path, *more: str) -> tuple[int, dict]:
    code = run("run", NAME, "--endpoint", server.endpoint, "--evidence-dir", str(folder), "--json", *more)
    return code, json.loads((folder / "result.json").read_text()) if (folder / "result.json").is_file() else {}


def test_a_running_service_is_evaluated_and_never_called_pass_for_what_it_does_not_prove(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with BaselineServer(tmp_path / "server") as server:
        code, result = evaluate(server, tmp_path / "a")
        assert code == 3 and result["status"] == AS_THE_DOUBLE_IS
        assert json.loads(capsys.readouterr().out) == result
        assert result["service"] == "already running" and result["guardrails"]["configured"] is True
        assert {result["guardrails"][kind] for kind in ("applied", "texts_applied", "outputs_applied")} == {False}
        assert len(result["images"]) == 2 and result["batch_size"] == 2
        assert not (tmp_path / "a" / "server-start.json").exists()
        assert (tmp_path / "a" / "publication" / "provenance.json").is_file()
        assert evaluate(server, tmp_path / "b", "--expect", AS_THE_DOUBLE_IS)[0] == 0


def test_it_publishes_where_it_is_told_and_reads_back_from_there(
    s3_server: LocalS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BaselineServer(tmp_path / "server") as server:
        s3_server.create_bucket("golden-eval")
        for name, value in s3_server.environ.items():
            monkeypatch.setenv(name, value)
        code, result = evaluate(server, tmp_path / "a", "--publish", "s3://golden-eval/golden/")
        assert (code, result["status"], result["publication"]) == (3, AS_THE_DOUBLE_IS, "s3://golden-eval/golden/")
        assert "golden/provenance.json" in keys_of(s3_server.environ, "golden-eval") and len(result["images"]) == 2
        assert not (tmp_path / "a" / "publication").exists()


def test_without_a_token_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPA_COSMOS3_RAY_TOKEN")
    folder = tmp_path / "e"
    assert run("run", NAME, "--endpoint", "http://127.0.0.1:9", "--evidence-dir", str(folder)) == 2
    assert not folder.exists()


def test_a_device_other_than_asked_for_is_refused_before_anything_is_generated(tmp_path: Path) -> None:
    with BaselineServer(tmp_path / "server") as server:
        code, result = evaluate(server, tmp_path / "a", "--target", "sm_120")
        assert (code, result, server.batches) == (3, {}, [])


def test_a_sample_that_fails_is_fail_with_exit_4(tmp_path: Path) -> None:
    with BaselineServer(tmp_path / "server") as server:
        server.faults.failing = {"golden-b": "error"}
        code, result = evaluate(server, tmp_path / "a")
        assert code == 4 and result["status"] == "FAIL" and "ray-batch" in result["failures"][0]


def test_a_batch_size_of_one_is_fail(tmp_path: Path) -> None:
    with BaselineServer(tmp_path / "server", max_batch_size=1) as server:
        code, result = evaluate(server, tmp_path / "a")
        assert code == 4 and "max_batch_size" in result["failures"][0]


SHOWN = {name: asked.scene for name, asked in ASKED.items()}


def test_block_world_pictures_are_judged_by_what_they_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SceneServer(tmp_path / "server", SHOWN) as server:
        code, result = evaluate(server, tmp_path / "a")
        assert (code, result["failures"]) == (3, []) and "_BLOCKWORLD_" in f"{result['status']}_"
        assert result["shown"] == dict.fromkeys(SHOWN, True)
        assert run("run", "--endpoint", server.endpoint, "--expect", result["status"]) == 0
        assert "golden-fall: shows what was asked for" in capsys.readouterr().out


@pytest.mark.parametrize("pair", [("golden-cube", "golden-pair"), ("golden-slide", "golden-fall")])
def test_outputs_that_are_swapped_fail_it_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pair: tuple[str, str]
) -> None:
    one, other = pair
    with SceneServer(tmp_path / "server", SHOWN | {one: SHOWN[other], other: SHOWN[one]}) as server:
        code, result = evaluate(server, tmp_path / "a")
        assert (code, result["status"]) == (4, "FAIL")
        assert [text.partition(":")[0] for text in result["failures"]] == list(pair)
        assert {name for name, right in result["shown"].items() if not right} == set(pair)
        capsys.readouterr()
        assert run("run", "--endpoint", server.endpoint) == 4
        assert f"failed: {one}: 'A large" in capsys.readouterr().out


def test_without_numpy_no_block_world_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cosmos3_serve.blockworld.asked.find_spec", lambda name: None)
    with SceneServer(tmp_path / "server", SHOWN) as server:
        assert evaluate(server, tmp_path / "a")[0] == 2
        assert server.batches == [] and "pip install numpy" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        ["show", "nope"],
        ["run", "nope"],
        ["run", NAME, "--target", "sm_80"],
        ["run", NAME, "--expect", "FAIL"],
        ["run", NAME, "--endpoint", "http://127.0.0.1:9", "--engine", "diffusers"],
        ["run", NAME, "--endpoint", "nonsense"],
        ["show"],
    ],
)
def test_usage_errors(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*argv) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_folder_with_something_in_it_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    assert run("run", NAME, "--endpoint", "http://127.0.0.1:9", "--evidence-dir", str(tmp_path / "full")) == 2


def test_the_target_of_another_machine_is_refused_before_a_service_is_started(tmp_path: Path) -> None:
    flags = ["--engine", "diffusers", "--checkpoint", "tiny", "--no-guardrails", "--device", "cpu"]
    assert run("run", NAME, *flags, "--target", "sm_120", "--evidence-dir", str(tmp_path / "e")) == 3
    assert not (tmp_path / "e").exists()


def test_the_production_is_refused_where_there_is_no_engine_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NPA_COSMOS3_FRAMEWORK_PYTHON", str(tmp_path / "no-python"))
    assert run("run", NAME) == 3


# ---- the service that it starts ------------------------------------------------------------------------------------


def test_the_flags_are_the_settings_in_effect_on_a_port_of_its_own(tmp_path: Path) -> None:
    settings = GeneratorSettings.load(
        {"engine": "diffusers", "guardrails": False, "max_batch_size": 2}, {"COSMOS3_QUEUE_LIMIT": "7"}
    )
    flags = service_flags(settings, tmp_path)
    again = typer.Typer()  # parsed back as the command would, so that nothing is lost on the way
    found: dict = {}

    @again.command()
    @settings_options(GeneratorSettings)
    def parse(flags: dict) -> None:
        found.update(flags)

    again(args=flags, standalone_mode=False)
    own = {"host": "127.0.0.1", "port": 0, "output_path": tmp_path / "outputs"}
    assert GeneratorSettings.load(found, {}) == settings.model_copy(update=own)


def test_a_process_is_known_by_when_it_started() -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("no /proc here")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        mine, theirs = start_ticks(os.getpid()), start_ticks(child.pid)
        assert mine is not None and theirs is not None and theirs >= mine
    finally:
        child.communicate(b"\n")
    assert start_ticks(child.pid) is None


class Log:
    """A double of the started command: only the end of its log."""

    def __init__(self, text: str) -> None:
        self.text = text

    def log_tail(self, lines: int) -> str:
        return self.text


def test_the_services_own_refusal_keeps_its_code() -> None:
    problem = {"code": "guardrails_unavailable", "detail": "no", "exit_code": 3, "remedy": "do", "errors": []}
    text = '{"event": "x"}\n' + json.dumps(problem, indent=2, sort_keys=True) + "\ncosmos3 ray-serve failed: no"
    refusal = _refusal(Log(text))  # type: ignore[arg-type]
    assert isinstance(refusal, StartRefused)
    assert (refusal.stable_code, refusal.exit_code, refusal.remedy) == ("guardrails_unavailable", 3, "do")
    assert _refusal(Log("Traceback …")) is None  # type: ignore[arg-type]


def test_the_checklist_runs_as_the_handbook_writes_it_and_refuses_another_device(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without a name, and on this machine, whose device is not the one that was asked for."""
    assert run("run", "--target", "sm_120", "--engine", "diffusers", "--device", "cpu", "--json") == 3
    assert json.loads(capsys.readouterr().out)["code"] == "wrong_target"
    assert not list(tmp_path.glob("golden-eval-*")), "nothing was started, and there is nothing to record"


def test_a_running_service_gets_its_checklist(tmp_path: Path) -> None:
    with BaselineServer(tmp_path / "server") as server:
        code = run("run", "--endpoint", server.endpoint, "--evidence-dir", str(tmp_path / "a"))
    assert code == 3
    rows = json.loads((tmp_path / "a" / "result.json").read_text())["checklist"]
    assert {row["state"] for row in rows} == {"shown", "not shown", "outside this run"}
    assert {row["item"]: row["state"] for row in rows}["two decodable artifacts"] == "shown"
