"""A service that does not start says why, in its own words, and leaves nothing behind."""

import os
import sys

import pytest
from support.processes import left_after, new_mark

from cosmos3_serve.cli.service_process import ServiceProcess
from cosmos3_serve.errors import ServiceFailure, StartRefused


def environ(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NPA_", "COSMOS3_"))}
    return {**kept, **more}


def test_a_refusal_is_passed_on_with_code_and_remedy(tmp_path) -> None:
    flags = ["--port", "0", "--engine", "diffusers", "--checkpoint", "tiny", "--output-path", str(tmp_path / "out")]
    with (
        ServiceProcess([*flags, "--no-guardrails"], environ(), tmp_path / "log") as service,
        pytest.raises(StartRefused) as caught,
    ):
        service.wait_ready()
    assert "NPA_COSMOS3_RAY_TOKEN" in caught.value.detail + caught.value.remedy
    assert caught.value.stable_code != "None"


def test_a_child_that_dies_is_a_failure_that_quotes_its_log(tmp_path) -> None:
    service = ServiceProcess([], environ(), tmp_path / "log")
    service._command = [sys.executable, "-c", "import sys; sys.exit('cannot go on')"]
    with service, pytest.raises(ServiceFailure) as caught:
        service.wait_ready()
    assert "cannot go on" in caught.value.remedy


def test_a_child_that_stays_silent_is_given_up_and_ended_with_its_own_children(tmp_path) -> None:
    mark = new_mark()
    service = ServiceProcess([], environ(**mark), tmp_path / "log", timeout_s=0.5)
    service._command = ["bash", "-c", "sleep 600 & sleep 600"]
    with service, pytest.raises(ServiceFailure):
        service.wait_ready()
    assert left_after(mark) == {}


def test_the_ready_line_is_read_however_it_arrives(tmp_path) -> None:
    service = ServiceProcess([], environ(), tmp_path / "log")
    script = "import sys,time\nfor c in '{\"endpoint\": \"x\"}': print(c, end='', flush=True)\ntime.sleep(60)"
    service._command = [sys.executable, "-c", script]
    with service:
        assert service.wait_ready() == {"endpoint": "x"}
