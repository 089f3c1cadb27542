"""A restart of the generator in the middle of a generation of a minute, on real Ray with the scripted engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.faults import Faulty, sample, states, until
from support.service import client

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
MINUTE_S = 60


def test_a_generation_of_a_minute_survives_the_restart_and_what_waits_goes_on_after_it(
    faulty: Faulty, tmp_path: Path
) -> None:
    """The client is the product's command, and knows nothing of the restart.

    None of the samples may share a wave, and two waves go to the engine together, in no order: one of those that wait
    may run before the minute's, the next while it drains. The third has to wait for the restart.
    """
    waits = ["waits", "waits-too", "waits-as-well"]
    samples = [
        sample("minute", "pace=2", steps=MINUTE_S // 2),
        *(sample(name, steps=steps) for steps, name in enumerate(waits, 1)),
    ]
    batch = tmp_path / "batch.json"
    batch.write_text(json.dumps({"samples": samples, "request_id": "over-the-restart"}))
    faulty.environ["NPA_COSMOS3_RAY_PORT"] = faulty.url.rsplit(":", 1)[1]
    command = [
        *(sys.executable, "-m", "cosmos3_serve.cli.main", "ray-batch", "--input-path", str(batch)),
        *("--output-path", str(tmp_path / "published"), "--endpoint", faulty.url, "--timeout", "600"),
        *("--expected-revision", faulty.ready["framework_revision"], "--journal-dir", str(tmp_path / "journal")),
        "--json",
    ]
    submitted = subprocess.Popen(
        command, env={**os.environ, **faulty.environ}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        with client(faulty) as http:
            view = lambda: http.get("/v1/batches/over-the-restart").json().get("samples")  # noqa: E731
            until(lambda: view() and view()[0].get("step"), 120)
            began = time.monotonic()
            faulty.terminate()
            until(lambda: faulty.exit_code is not None, 180)
        drained = time.monotonic() - began
        assert faulty.exit_code == 0
        assert drained > MINUTE_S / 2, "it waited for the sample that ran"
        assert submitted.poll() is None, "the client is still there"
        faulty.launch().wait_ready()
        _, err = submitted.communicate(timeout=240)
    finally:
        submitted.kill()
    assert submitted.returncode == 0, err[-3000:]
    manifest = json.loads((tmp_path / "published" / "provenance.json").read_text())
    assert manifest["status"] == "completed"
    with client(faulty) as http:
        assert set(states(faulty.ended(http, "over-the-restart")).values()) == {"succeeded"}
    ran = {key: times for key, times in faulty.runs().items() if key.startswith("over-the-restart/")}
    assert ran == {f"over-the-restart/{name}": 1 for name in ("minute", *waits)}
    faulty.works()
