"""The S3 server, a token, and a state folder for every test."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.s3 import LocalS3


@pytest.fixture
def s3(s3_server: LocalS3, monkeypatch: pytest.MonkeyPatch) -> LocalS3:
    """The server, and the process's environment pointing at it."""
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NPA_COSMOS3_RAY_TOKEN", "support-token")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("NPA_COSMOS3_RAY_ENDPOINT", raising=False)
    monkeypatch.delenv("NPA_TASK_IMAGE", raising=False)
    return tmp_path / "state" / "cosmos3" / "batches"
