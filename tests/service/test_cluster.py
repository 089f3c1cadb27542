"""The cluster's preparations, without Ray: environment, private files, short paths, what dead services left."""

import fcntl
import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmos3_serve.errors import ServiceFailure, StartRefused
from cosmos3_serve.service import cluster, reaper
from cosmos3_serve.service.cluster import TRIES, RayCluster, short_base, sweep


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
        assert environ[cluster.CONTROL_LOOP_ENV] == cluster.CONTROL_LOOP_S
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


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:10001", "127.0.0.1", "host.invalid:6379", "a:b"])
def test_a_cluster_that_is_not_there_is_refused_before_ray_tries_for_minutes(address: str) -> None:
    with pytest.raises(StartRefused) as refused:
        RayCluster(address, environ={}).start()
    assert refused.value.stable_code == "ray_unreachable" and refused.value.remedy


def test_only_what_was_started_since_is_ended() -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    before = subprocess.Popen(sleep)
    own = RayCluster(environ={"HOME": "/nonexistent"})
    own._prepare()
    since = subprocess.Popen(sleep)
    own.record()
    assert own.directory is not None and [pid for pid, _ in reaper.recorded(own.directory)] == [since.pid]
    own.stop()
    assert since.wait(5) != 0 and before.poll() is None
    before.kill()
    before.wait()


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


class FakeRay:
    """As much of Ray as starting needs: each start leaves a process, and raises while there are errors to raise."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.options: list[dict[str, object]] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.shutdowns = 0

    def init(self, **options: object) -> None:
        self.options.append(options)
        self.processes.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        if self.errors:
            raise self.errors.pop(0)

    def shutdown(self) -> None:
        self.shutdowns += 1


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeRay]:
    def make(*errors: Exception) -> FakeRay:
        importlib.import_module("ray._private.node")  # the real one: what is left out of a start is taken from it
        ray = FakeRay(*errors)
        monkeypatch.setitem(sys.modules, "ray", ray)
        return ray

    return make


def test_a_node_that_did_not_come_up_in_time_is_started_again(fake_ray: Callable[..., FakeRay]) -> None:
    ray = fake_ray(*[Exception("The current node timed out during startup")] * (TRIES - 1))
    own = RayCluster(environ={})
    own.start()
    try:
        *earlier, last = ray.processes
        assert all(one.poll() is not None for one in earlier) and last.poll() is None  # nothing of them is left
        assert len(earlier) == ray.shutdowns == TRIES - 1
        assert all(options == ray.options[0] for options in ray.options)
        assert own.directory is not None and (own.directory / "token").exists()
    finally:
        own.stop()
    assert last.wait(5) is not None


def test_a_cluster_that_never_comes_up_is_a_typed_failure_and_leaves_nothing(fake_ray: Callable[..., FakeRay]) -> None:
    ray = fake_ray(*[Exception("no")] * TRIES)
    own = RayCluster(environ={})
    with pytest.raises(ServiceFailure, match="did not start"):
        own.start()
    assert len(ray.processes) == TRIES and all(process.wait(5) is not None for process in ray.processes)
    assert own.directory is None


def test_workers_of_a_joined_cluster_are_given_what_they_do_not_inherit(fake_ray: Callable[..., FakeRay]) -> None:
    ray = fake_ray()
    RayCluster("10.0.0.1:6379", environ={}, carry={"HF_HOME": "/c/hf"}).start()
    assert ray.options[0]["runtime_env"] == {"env_vars": {"HF_HOME": "/c/hf"}}
    ray.processes[0].kill()
    own = RayCluster(environ={}, carry={"HF_HOME": "/c/hf"})
    own.start()
    assert "runtime_env" not in ray.options[1]
    own.stop()


def test_joining_is_tried_once(fake_ray: Callable[..., FakeRay]) -> None:
    ray = fake_ray(ConnectionError("nobody there"))
    with pytest.raises(StartRefused, match="cannot be joined"):
        RayCluster("10.0.0.1:6379", environ={}).start()
    assert len(ray.options) == 1
    ray.processes[0].kill()
