"""The cluster's preparations, without Ray: environment, private files, short paths, what dead services left."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.service import cluster, reaper
from cosmos3_serve.service.cluster import RayCluster, short_base, sweep


@pytest.mark.parametrize("mode", ["disabled", "TOKEN", "k8s"])
def test_another_auth_mode_is_refused_before_ray_is_imported(mode: str) -> None:
    with pytest.raises(StartRefused, match="RAY_AUTH_MODE"):
        RayCluster(environ={"RAY_AUTH_MODE": mode})
    assert RayCluster(environ={"RAY_AUTH_MODE": "token"}).owned
    assert not RayCluster("10.0.0.1:6379", environ={}).owned


def test_an_owned_cluster_gets_a_private_directory_a_fresh_token_and_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"HOME": "/nonexistent", "RAY_AUTH_TOKEN": "someone-elses", "RAY_ADDRESS": "10.0.0.1:6379"}
    own = RayCluster(environ=environ)
    own._prepare()
    try:
        assert own.directory is not None and own.directory.stat().st_mode & 0o777 == 0o700
        token = Path(environ["RAY_AUTH_TOKEN_PATH"])
        assert token.parent == own.directory and token.stat().st_mode & 0o777 == 0o600
        assert len(token.read_text()) >= 32
        assert "RAY_AUTH_TOKEN" not in environ and "RAY_ADDRESS" not in environ
        assert environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
        assert Path(environ["HOME"]).is_relative_to(own.directory)
        # Ray's socket below it must fit into sockaddr_un.
        name = f"{own.directory}/session_2026-11-29_19-16-15_633172_4194304/sockets/plasma_store"
        assert len(name.encode()) <= 107
        second = RayCluster(environ=dict(environ))
        second._prepare()
        assert second.directory is not None and (second.directory / "token").read_text() != token.read_text()
        second.stop()
        assert sweep() == 0 or own.directory.exists()  # a living owner is left alone
    finally:
        directory = own.directory
        own.stop()
    assert directory is not None and not directory.exists()
    own.stop()  # twice is fine


def test_a_home_that_can_be_written_is_left_alone(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    own = RayCluster(environ=environ)
    own._prepare()
    own.stop()
    assert environ["HOME"] == str(tmp_path) and list(tmp_path.iterdir()) == []


def test_no_short_directory_is_a_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(cluster.tempfile, "gettempdir", lambda: str(long))
    assert short_base() != long
    monkeypatch.setattr(cluster, "MAX_BASE", 0)
    with pytest.raises(StartRefused, match="path"):
        short_base()


def test_what_a_dead_service_left_is_ended_and_removed(tmp_path: Path) -> None:
    orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    started = reaper.start_time(orphan.pid)
    assert started is not None
    dead, alive, foreign = tmp_path / "c3-dead", tmp_path / "c3-alive", tmp_path / "c3-no-lock"
    for directory in (dead, alive, foreign):
        directory.mkdir()
    reaper.record(dead, [(orphan.pid, started)])
    (dead / cluster.OWNER).touch()
    with (alive / cluster.OWNER).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert sweep(tmp_path) == 1
    assert not dead.exists() and alive.exists() and foreign.exists()
    assert orphan.wait(5) != 0
