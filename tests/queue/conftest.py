"""A token, a state folder and a service for every test of queues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ledger_server import LedgerServer
from support.queues import Site
from support.s3 import LocalS3


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NPA_COSMOS3_RAY_TOKEN", "support-token")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("NPA_COSMOS3_RAY_ENDPOINT", raising=False)
    return tmp_path / "state"


@pytest.fixture
def s3(s3_server: LocalS3, monkeypatch: pytest.MonkeyPatch) -> LocalS3:
    """The server, and the process's environment pointing at it."""
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A service and a place for input and output on this disk."""
    with LedgerServer(tmp_path / "server", steps=1) as server:
        yield Site(tmp_path, server)
