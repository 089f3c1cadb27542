"""However a command ends, its children have ended before it."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

PRELUDE = """
import signal, subprocess, sys, time
from cosmos3_serve.trial.children import Children, OwnCommand, die_with_parent, end
from cosmos3_serve.errors import Cosmos3Error

class Sleeper:
    def __init__(self, slow_start=0.0, slow_stop=0.0):
        self.slow_start, self.slow_stop = slow_start, slow_stop
    def __enter__(self):
        dying = die_with_parent(signal.SIGTERM)
        self.process = subprocess.Popen(["sleep", "600"], start_new_session=True, preexec_fn=dying)
        print(self.process.pid, flush=True)
        time.sleep(self.slow_start)
        return self
    def __exit__(self, *exc):
        print("stopping", flush=True)
        time.sleep(self.slow_stop)
        end(self.process, signal.SIGTERM, 5)

def guarded(body):
    try:
        with Children() as children:
            body(children)
    except Cosmos3Error as error:
        print(error.stable_code, flush=True)
        sys.exit(error.exit_code)
"""


def start(tmp_path: Path, body: str) -> subprocess.Popen:
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + textwrap.dedent(body))
    return subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)


def alive(pid: int) -> bool:
    """Running, and not a zombie that only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int, within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_children_then_the_command(tmp_path, number) -> None:
    process = start(tmp_path, "guarded(lambda c: (c.enter(Sleeper()), print('on', flush=True), time.sleep(600)))")
    pid = int(process.stdout.readline())
    assert process.stdout.readline() == "on\n"
    process.send_signal(number)
    rest, _ = process.communicate(timeout=30)
    assert rest == "stopping\ninterrupted\n"
    assert process.returncode == 130
    assert not alive(pid)


def test_a_signal_while_a_child_starts_cannot_lose_it(tmp_path) -> None:
    process = start(tmp_path, "guarded(lambda c: (c.enter(Sleeper(slow_start=1)), time.sleep(600)))")
    pid = int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=30)
    assert rest == "stopping\ninterrupted\n"
    assert not alive(pid)


def test_a_second_ctrl_c_does_not_cut_the_clean_up_short(tmp_path) -> None:
    process = start(tmp_path, "guarded(lambda c: (c.enter(Sleeper(slow_stop=1)), time.sleep(600)))")
    pid = int(process.stdout.readline())
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert not alive(pid)


def test_a_failure_ends_the_children_and_is_passed_on(tmp_path) -> None:
    process = start(tmp_path, "guarded(lambda c: (c.enter(Sleeper()), c.run(['no-such-command'], {}), 0))")
    pid = int(process.stdout.readline())
    rest, _ = process.communicate(timeout=60)
    assert rest == "stopping\nservice_failed\n"
    assert process.returncode == 4
    assert not alive(pid)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's parent-death signal is Linux only")
def test_children_do_not_outlive_a_killed_command(tmp_path) -> None:
    process = start(tmp_path, "guarded(lambda c: (c.enter(Sleeper()), print('on', flush=True), time.sleep(600)))")
    pid = int(process.stdout.readline())
    process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    process.stdout.close()
    assert gone(pid)
