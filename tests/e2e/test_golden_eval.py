"""The golden evaluation as an operator runs it, against a real service that it starts: block-world checkpoint,
CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import left_after, new_mark
from support.service import shared_cache

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
STATUS = "PASS_DIFFUSERS_BLOCKWORLD_UNGUARDED_CPU"


def test_it_starts_a_service_proves_what_ran_and_leaves_nothing_running(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    mark, folder = new_mark(), tmp_path / "evidence"
    (tmp_path / "defaults.json").write_text('{"text2image": {"guidance": 3.5}}')
    command = [
        *(sys.executable, "-m", "cosmos3_serve.cli.main", "golden-eval", "run", "cosmos3-ray-serve", "--json"),
        *("--engine", "diffusers", "--checkpoint", "blockworld", "--no-guardrails", "--device", "cpu"),
        *("--cache-dir", str(shared_cache(tmp_path_factory)), "--drain-timeout-s", "5"),
        *("--defaults-file", str(tmp_path / "defaults.json")),
        *("--target", "cpu", "--evidence-dir", str(folder)),
    ]
    done = subprocess.run(command, env={**os.environ, **mark}, capture_output=True, text=True, timeout=500)
    assert done.returncode == 3, done.stderr + done.stdout  # less than the production, and the exit code says so
    result = json.loads(done.stdout)
    assert result == json.loads((folder / "result.json").read_text())
    assert result["status"] == STATUS and result["failures"] == [] and len(result["not_proven"]) == 4
    assert result["target"]["status"] == "cpu" and result["service"] == "started by this run"
    assert result["batch_size"] == 4 and result["max_batch_size"] >= 2
    assert list(result["shown"].values()) == [True] * 4, "a picture or clip shows something else than was asked for"
    assert result["inference_batches"] and result["coalesced"]
    assert [(i["width"], i["height"]) for i in result["images"]] == [(256, 256)] * 2
    assert [(c["width"], c["height"], c["frames"]) for c in result["clips"]] == [(320, 192, 9)] * 2
    ready = json.loads((folder / "ready.json").read_text())
    assert ready["custom_defaults"] is True and len(ready["defaults_sha256"]) == 64
    assert (ready["target"], ready["target_status"], ready["target_forced"]) == ("cpu", "cpu", False)
    published = json.loads((folder / "publication" / "response.json").read_text())
    assert {o["args"]["guidance"] for o in published["outputs"] if o["args"]["model_mode"] == "text2image"} == {3.5}
    start = json.loads((folder / "server-start.json").read_text())
    join = json.loads((folder / "server-join.json").read_text())
    assert (start["pid"], start["start_ticks"]) == (join["pid"], join["start_ticks"])
    assert join["same_process"] and join["signal"] == "SIGTERM" and join["exit_code"] == 0
    assert "--checkpoint" in start["command"]
    assert not any("token" in word.lower() for word in start["command"])
    assert left_after(mark) == {}
