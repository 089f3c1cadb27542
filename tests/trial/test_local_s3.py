from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.s3 import boto

from cosmos3_serve.errors import UsageError
from cosmos3_serve.trial.local_s3 import LocalS3

ORPHAN = """
import sys, time
from cosmos3_serve.trial.local_s3 import LocalS3
s3 = LocalS3().start()
print(s3.pid, s3.endpoint, flush=True)
time.sleep(600)
"""


def gone(pid: int, within_s: float = 20) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


def test_it_serves_on_loopback_in_its_own_process_until_stopped() -> None:
    with LocalS3() as s3:
        pid = s3.pid
        assert pid not in (0, os.getpid())
        assert s3.endpoint.startswith("http://127.0.0.1:")
        assert set(s3.environ) == {"AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"}
        s3.create_bucket("bucket")
        s3.create_bucket("bucket")
        boto(s3.environ).put_object(Bucket="bucket", Key="k", Body=b"x")
        assert boto(s3.environ).get_object(Bucket="bucket", Key="k")["Body"].read() == b"x"
        with LocalS3() as other:
            assert other.endpoint != s3.endpoint and other.environ != s3.environ
    assert gone(pid)
    s3.stop()


def test_it_dies_with_a_killed_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline().split()[0])
        os.kill(pid, 0)
        parent.send_signal(signal.SIGKILL)
        parent.wait(10)
        assert gone(pid), "an orphaned server would hold its port and memory for ever"
    finally:
        parent.kill()
        parent.wait()
        if parent.stdout:
            parent.stdout.close()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "moto").mkdir()
    (tmp_path / "moto" / "__init__.py").write_text("raise ModuleNotFoundError('no moto', name='moto')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    with pytest.raises(UsageError) as caught:
        LocalS3().start()
    assert caught.value.stable_code == "extra_missing"
    assert "'.[quickstart]'" in caught.value.remedy
