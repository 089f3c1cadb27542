"""The reaper ends what was noted, by id and start time, and nothing else."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cosmos3_serve.service import reaper

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)",
]


def identity(process: subprocess.Popen[bytes]) -> reaper.Process:
    started = reaper.start_time(process.pid)
    assert started is not None
    return process.pid, started


@pytest.fixture
def child():
    process = subprocess.Popen(SLEEP)
    yield process
    process.kill()
    process.wait()


def test_a_process_is_its_id_and_its_start_time(child: subprocess.Popen[bytes]) -> None:
    pid, started = identity(child)
    assert (pid, started) in reaper.descendants(os.getpid())
    reaper.end([(pid, started + 1), (2**22 - 1, 5)], term_s=0.2)  # a reused id, an id of nobody
    assert child.poll() is None
    reaper.end([(pid, started)])
    assert child.wait(5) == -signal.SIGTERM
    assert reaper.start_time(pid) is None


def test_what_ignores_sigterm_is_killed() -> None:
    process = subprocess.Popen(STUBBORN, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline()
    assert reaper.end([identity(process)], term_s=0.2) == [process.pid]
    assert process.wait(5) == -signal.SIGKILL
    process.stdout.close()


def test_a_zombie_is_gone_and_grandchildren_are_found() -> None:
    script = f"import subprocess, time; subprocess.Popen({SLEEP!r}); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 10
    while len(reaper.descendants(parent.pid)) < 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    below = reaper.descendants(parent.pid)
    assert len(below) == 1
    parent.kill()
    while reaper.start_time(parent.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert reaper.start_time(parent.pid) is None  # not waited for: a zombie
    reaper.end(below)
    parent.wait()


def test_the_record_survives_junk(tmp_path: Path) -> None:
    assert reaper.recorded(tmp_path) == []
    for junk in ("", "{", "[[1]]", "5", '[["a", "b"]]'):
        (tmp_path / reaper.RECORD).write_text(junk)
        assert reaper.recorded(tmp_path) == []
    reaper.record(tmp_path, [(1, 2)])
    assert json.loads((tmp_path / reaper.RECORD).read_text()) == [[1, 2]] and reaper.recorded(tmp_path) == [(1, 2)]


def test_the_script_waits_for_its_pipe_then_ends_the_record_and_clears_up(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    directory = tmp_path / "c3-x"
    directory.mkdir()
    reaper.record(directory, [identity(child)])
    script = subprocess.Popen(
        [sys.executable, "-I", "-S", reaper.__file__, str(directory)], stdin=subprocess.PIPE, start_new_session=True
    )
    time.sleep(0.3)
    script.terminate()  # the terminal's signals do not end it
    time.sleep(0.1)
    assert script.poll() is None and child.poll() is None and directory.exists()
    assert script.stdin is not None
    script.stdin.close()
    assert script.wait(10) == 0
    assert child.wait(5) == -signal.SIGTERM and not directory.exists()
