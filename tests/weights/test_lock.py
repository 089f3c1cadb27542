"""The lock between processes ends with its holder and does not wait for ever."""

import subprocess
import sys

import pytest

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.weights.lock import process_lock

HOLD = """
import sys, pathlib
from cosmos3_serve.weights.lock import process_lock
with process_lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    path = tmp_path / "a.lock"
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    yield process, path
    process.kill()
    process.wait()


def test_waiting_ends_with_a_refusal(holder):
    _, path = holder
    with pytest.raises(StartRefused, match="another process"), process_lock(path, timeout_s=0.2):
        pytest.fail("the lock was taken twice")


def test_a_killed_holder_frees_the_lock(holder):
    process, path = holder
    process.kill()
    process.wait()
    with process_lock(path, timeout_s=5):
        pass
