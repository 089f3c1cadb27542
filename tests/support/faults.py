"""What the fault tests do to a scripted service: ask it, break its processes, and look what is left."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from support.scripted_engine import CALLS, RUNS
from support.scripted_service import ScriptedGenerator
from support.service import client

from cosmos3_serve.service.reaper import descendants

WAIT_S = 60.0


def sample(name: str, prompt: str = "a red ball", steps: int = 1) -> dict[str, Any]:
    return {"name": name, "prompt": prompt, "num_frames": 1, "num_steps": steps, "seed": 7}


def until(what: Callable[[], Any], within_s: float = WAIT_S) -> Any:
    """The first true answer; fails when none came in time."""
    deadline = time.monotonic() + within_s
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


class Faulty(ScriptedGenerator):
    """A scripted service and the hands to break it."""

    def post(self, http: httpx.Client, *samples: dict[str, Any], id: str = "", wait: bool = True) -> httpx.Response:
        headers = {} if wait else {"Prefer": "respond-async"}
        return http.post("/v1/batches", json={"samples": list(samples), "request_id": id}, headers=headers)

    def ended(self, http: httpx.Client, request_id: str) -> dict[str, Any]:
        """The view of a batch once it ended, however often the port goes away meanwhile."""

        def look() -> Any:
            with contextlib.suppress(httpx.TransportError):
                answer = http.get(f"/v1/batches/{request_id}")
                if answer.status_code == 200 and answer.json()["state"] not in ("queued", "running"):
                    return answer.json()
            return None

        view: dict[str, Any] = until(look)
        return view

    def running(self, http: httpx.Client, request_id: str) -> None:
        """Return once a sample of the batch is with the engine, between two steps."""
        until(lambda: any(s.get("step") for s in http.get(f"/v1/batches/{request_id}").json()["samples"]))

    def ready_status(self) -> int:
        """HTTP status of /ready; 0 while nobody listens."""
        with contextlib.suppress(httpx.TransportError), client(self, timeout=10.0) as http:
            return http.get("/ready").status_code
        return 0

    def works(self) -> None:
        """The service is ready and a normal request succeeds."""
        until(lambda: self.ready_status() == 200)
        with client(self) as http:
            answer = self.post(http, sample("normal"))
            assert answer.status_code == 200, answer.text
            assert answer.json()["outputs"][0]["status"] == "success"

    def replica(self, name: str) -> int:
        """Process id of the replica of a deployment: `ingress` or `Cosmos3-Nano`."""
        titles = []
        for pid, _ in descendants(self.pid):
            with contextlib.suppress(OSError):
                title = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                # While it runs a method, Ray shows that too: `ray::ServeReplica:app:name.method()`.
                if re.match(rf"ray::ServeReplica.*[:.]{re.escape(name)}\b", title):
                    return pid
                titles.append(title)
        raise AssertionError(f"no replica of {name} among {[t for t in titles if t.startswith('ray::')]}")

    def shoot(self, name: str) -> int:
        pid = self.replica(name)
        os.kill(pid, signal.SIGKILL)
        return pid

    def runs(self) -> Counter[str]:
        """How often the engine finished which sample, by `request/sample`, over all lives of the service."""
        path = self.output_root.parent / RUNS
        return Counter(path.read_text().splitlines() if path.is_file() else [])

    def calls(self) -> list[list[str]]:
        """The samples of every call that the engine got, by `request/sample`, those that broke included."""
        path = self.output_root.parent / CALLS
        return [line.split() for line in path.read_text().splitlines()] if path.is_file() else []

    def true_artifacts(self, http: httpx.Client, request_id: str) -> list[bytes]:
        """The bytes of every artifact of an ended batch, each as large and with the SHA-256 that its response says."""
        found = []
        for artifact in http.get(f"/v1/batches/{request_id}/response").json()["artifacts"]:
            content = http.get(f"/v1/artifacts/{artifact['path']}").content
            assert len(content) == artifact["bytes"]
            assert hashlib.sha256(content).hexdigest() == artifact["sha256"], artifact["path"]
            found.append(content)
        return found


def states(view: dict[str, Any]) -> dict[str, str]:
    """Sample name to its code, or to its state where it has none."""
    return {s["name"]: s.get("code") or s["state"] for s in view["samples"]}


class Memory:
    """How much a process's resident memory grew, at its peak, since this was made."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak counts from now on
        self._before = self._read("VmRSS")

    @property
    def grown_mb(self) -> float:
        return (self._read("VmHWM") - self._before) * 1024 / 1e6

    def _read(self, name: str) -> int:
        found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{self._pid}/status").read_text(), re.M)
        assert found
        return int(found[1])
