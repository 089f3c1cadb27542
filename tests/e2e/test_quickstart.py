"""The quickstart as a user runs it: one object on stdout, a true publication, and nothing left running."""

import contextlib
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from PIL import Image
from support.fleet import need_engine, until
from support.processes import left_after, marked, new_mark

from cosmos3_serve.service import reaper
from cosmos3_serve.trial.shown import shown

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
KEYS = {"publication", "provenance", "samples", "artifacts", "contact_sheet", "engine", "weights", "seconds"}
TESTS = Path(__file__).parents[1]
SECOND_ACT = TESTS / "support" / "reasoner_act.py"


def command(workdir: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "cosmos3_serve.cli.main", "quickstart", "--workdir", str(workdir), *more]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One finished quickstart, with its second act where this machine has vLLM: the object it printed, its stderr, and
    its mark."""
    mark = new_mark()
    workdir = tmp_path_factory.mktemp("quick") / "work"
    # Settings of somebody else's services must not leak in.
    foreign = {"NPA_COSMOS3_RAY_PORT": "9", "NPA_COSMOS3_RAY_TOKEN": "somebody-elses",
               "COSMOS3_REASONER_PORT": "9", "COSMOS3_REASONER_TOKEN": "somebody-elses",
               "COSMOS3_REASONER_ENDPOINT": "http://127.0.0.1:9"}  # fmt: skip
    environ = {**os.environ, **mark, **foreign}
    ran = subprocess.run(command(workdir, "--json"), capture_output=True, text=True, timeout=800, env=environ)
    logs = "".join(log.read_text()[-4000:] for log in workdir.glob("logs/*.log"))
    assert ran.returncode == 0, ran.stderr[-4000:] + logs
    return json.loads(ran.stdout), ran.stderr, mark


def test_stdout_is_one_object_with_the_promised_keys(done) -> None:
    result, _, _ = done
    assert result.keys() >= KEYS
    assert result["weights"] == "blockworld"
    assert result["engine"].startswith("diffusers-")
    assert 0 < result["seconds"] < 500


def test_eight_samples_or_more_of_several_modes_succeed(done) -> None:
    result, _, _ = done
    assert len(result["samples"]) >= 8
    assert {sample["status"] for sample in result["samples"]} == {"success"}
    modes = [sample["mode"] for sample in result["samples"]]
    assert modes.count("text2image") >= 3
    assert {"text2image", "text2video", "image2video", "video2video", "forward_dynamics"} <= set(modes)


def test_most_pictures_show_what_their_prompts_say(done) -> None:
    """By measures of the pixels alone; a model that does not hear its prompts gets none of these right."""
    result, _, _ = done
    told = {sample["name"]: sample["shows_its_prompt"] for sample in result["samples"]}
    folder = Path(result["publication"]) / "artifacts"
    files = {a["path"].split("/")[-2]: folder / a["path"] for a in result["artifacts"]}
    assert told == shown(files)
    measured = [right for right in told.values() if right is not None]
    assert len(measured) == 8
    assert sum(measured) >= 5, told


def test_what_it_says_lies_where_it_says(done) -> None:
    result, _, _ = done
    record = json.loads(Path(result["provenance"]).read_text())
    assert record["status"] == "completed"
    assert record["weights"] == "blockworld"
    assert record["guardrails"] is False
    for artifact in record["artifacts"]:
        data = (Path(result["publication"]) / "artifacts" / artifact["path"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (artifact["bytes"], artifact["sha256"])
    with Image.open(result["contact_sheet"]) as sheet:
        assert sheet.format == "PNG"
        assert sheet.width > 1000


def test_a_conditioning_key_was_encoded(done) -> None:
    result, _, _ = done
    request = json.loads((Path(result["publication"]) / "request.json").read_text())
    uris = [s["vision_path"] for s in request["samples"] if s.get("model_mode") == "image2video"]
    assert any("%20" in uri and "%2B" in uri for uri in uris)


def test_images_shared_one_inference_call(done) -> None:
    result, _, _ = done
    record = json.loads(Path(result["provenance"]).read_text())
    waves = {sample["name"]: sample["wave"] for sample in record["samples"]}
    together = {waves[name]["inference_id"] for name in ("cube", "cone", "pair", "three")}
    assert len(together) == 1
    assert waves["pair"]["inference_batch"] == 4


def test_the_record_says_what_the_bytes_depend_on(done) -> None:
    result, _, _ = done
    record = json.loads(Path(result["provenance"]).read_text())
    [compute] = {
        json.dumps(sample["compute"], sort_keys=True): sample["compute"] for sample in record["samples"]
    }.values()
    assert (compute["device"], compute["dtype"], compute["threads"]) == ("cpu", "float32 from bfloat16", 1)
    assert compute["cpu"].startswith(platform.machine()) and compute["cpu_capability"]
    assert compute["libraries"]["diffusers"] == version("diffusers")


def test_it_tells_people_that_guardrails_are_off_and_which_weights(done) -> None:
    _, said, _ = done
    assert "guardrails off" in said
    assert said.count("checkpoint blockworld (a small model of drawn scenes)") >= 1
    assert "random weights" not in said


# ---- the second act ----------------------------------------------------------------------------------------------


@pytest.fixture
def act(done):
    """What the second act printed as an object; skips where this machine has no vLLM."""
    need_engine()
    result, _, _ = done
    assert result["reasoner_skipped"] is None
    return result["reasoner"]


def test_the_reasoner_is_asked_about_a_video_of_the_publication(done, act) -> None:
    result, _, _ = done
    asked = Path(act["video"])
    name = str(asked.relative_to(Path(result["publication"]) / "artifacts"))
    (artifact,) = [a for a in result["artifacts"] if a["path"] == name]
    assert artifact["frames"] >= 2
    assert hashlib.sha256(asked.read_bytes()).hexdigest() == artifact["sha256"]
    (sample,) = [s for s in result["samples"] if f"/{s['name']}/" in name]
    assert sample["mode"] == "text2video"
    assert act["weights"] == "blockworld"
    assert act["replicas"] == 1
    assert 0 < act["seconds"] < 700


def test_the_second_question_finds_its_session_and_the_video(act) -> None:
    first, second = act["answers"]
    assert first["question"] != second["question"]
    assert [a["x-cosmos3-session"] for a in act["answers"]] == ["new", "hit"]
    assert [a["x-cosmos3-media"] for a in act["answers"]] == ["miss", "hit"]
    assert first["x-cosmos3-replica"] == second["x-cosmos3-replica"] == "replica-0"
    for answer in act["answers"]:
        assert answer["usage"]["prompt_tokens_details"]["multimodal_tokens"]["video"] > 0
        assert answer["usage"]["completion_tokens"] > 0


def test_the_answers_say_what_is_measured_in_the_clip(done, act) -> None:
    """The measure knows neither the prompt nor the model."""
    _, said, _ = done
    for answer in act["answers"]:
        assert f"> {answer['question']}" in said
        assert answer["measured"]
        assert answer["right"] is True, answer
    assert said.count("(as measured;") == len(act["answers"])
    assert "x-cosmos3-session: hit, x-cosmos3-media: hit, x-cosmos3-replica: replica-0" in said


def test_nothing_keeps_running(done) -> None:
    _, _, mark = done
    assert left_after(mark) == {}


# ---- the end, at any moment --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "moment", ["generator service", pytest.param("ready at", marks=pytest.mark.slow)], ids=["launched", "ready"]
)
def test_ctrl_c_leaves_no_process_behind(tmp_path: Path, moment: str) -> None:
    mark = new_mark()
    process = first_act(tmp_path / "work", mark)
    for line in process.stderr:
        if moment in line:
            break
    interrupted(process, mark)


def test_ctrl_c_while_replicas_start_leaves_no_process_behind(tmp_path: Path) -> None:
    """Ray and Serve run by then: all processes that a quickstart's first act ever has."""
    mark = new_mark()
    process = first_act(tmp_path / "work", mark)
    until(lambda: any("ray::ServeReplica" in title for title in titles_below(process.pid)), 120)
    interrupted(process, mark)


@pytest.mark.slow
def test_ctrl_c_while_the_engine_loads_leaves_no_process_behind(tmp_path: Path) -> None:
    need_engine()
    mark = new_mark()
    process = started([sys.executable, str(SECOND_ACT), str(tmp_path / "work")], mark)
    until(lambda: any("vllm.entrypoints" in line for line in marked(mark).values()), 120)
    interrupted(process, mark)


@pytest.mark.slow
def test_ctrl_c_during_an_answer_leaves_no_process_behind(tmp_path: Path) -> None:
    need_engine()
    mark = new_mark()
    process = started([sys.executable, str(SECOND_ACT), str(tmp_path / "work")], mark)
    for line in process.stderr:
        if "; about " in line:
            break
    interrupted(process, mark)


def first_act(workdir: Path, mark: dict[str, str]) -> "subprocess.Popen[str]":
    """A quickstart on its way."""
    return started(command(workdir, "--json"), mark)


def titles_below(pid: int) -> list[str]:
    """What its descendants call themselves."""
    return [process_title(child) for child, _ in reaper.descendants(pid)]


def process_title(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


def started(line: list[str], mark: dict[str, str]) -> "subprocess.Popen[str]":
    environ = {**os.environ, **mark, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, start_new_session=True
    )


def interrupted(process: "subprocess.Popen[str]", mark: dict[str, str]) -> None:
    """Ctrl-C, and what must follow."""
    assert len(marked(mark)) > 1
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert json.loads(out)["code"] == "interrupted"
    assert left_after(mark) == {}


def test_a_folder_of_somebody_else_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    ran = subprocess.run(command(tmp_path, "--json"), capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert json.loads(ran.stdout)["code"] == "usage"
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
