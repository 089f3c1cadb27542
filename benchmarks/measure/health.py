"""How fast /health answers while batches run and a large artifact is served."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from measure import load
from measure.big_artifact import inflate
from measure.echo import Echo
from measure.result import Section, demand, quantile

from cosmos3_serve.generator.local import LocalGenerator

BATCHES = 16
PERIOD_S = 0.02
NOTE = (
    "GET /health on a connection kept alive, one every {period:.0f} ms, timed from the moment at which it was "
    "due, so that a stall counts for every question that it delays. Load: {batches} asynchronous batches in "
    "flight, and another process that downloads one {mb} MB artifact over and over as fast as it comes. All on "
    "the same {cores} cores: service, model, prober and downloader. Control: a process that does nothing but "
    "echo, asked in the same way at the same time; what it takes is the machine's doing, not the service's."
)


def health(service: LocalGenerator, cores: int, seconds: float, artifact_bytes: int, fields: dict[str, Any]) -> Section:
    rows: list[list[Any]] = [["load", "questions", "p50 ms", "p99 ms", "max ms", "control p99 ms", "artifact MB/s"]]
    figures: dict[str, Any] = {}
    with load.client(service) as http:
        answer = http.post("/v1/batches", json={"samples": load.samples(1, num_frames=1, num_steps=1)})
        demand(answer.status_code == 200, f"HTTP {answer.status_code}")
        path = answer.json()["artifacts"][0]["path"]
    service.stop()
    inflate(service.output_root, path, artifact_bytes)
    service.launch().wait_ready()
    with load.client(service) as http, Echo() as echo:
        for name, batches, download in (
            ("none", False, False),
            ("16 batches", True, False),
            (f"16 batches and {artifact_bytes // 1_000_000} MB served", True, True),
        ):
            places = [load.post(http, load.samples(1, f"h{i}-", **fields)) for i in range(BATCHES if batches else 0)]
            fetcher = _Fetcher(service, path) if download else None
            times, control = _probe(service, echo.port, seconds)
            carried = fetcher.stop(artifact_bytes) / seconds / 1e6 if fetcher else 0.0
            open_now = all_in_flight(http, places)
            for place in places:
                http.delete(place)
            for place in places:
                load.wait(http, place)
            row = {"p50": quantile(times, 0.5), "p99": quantile(times, 0.99), "max": max(times)}
            row["control_p99"] = quantile(control, 0.99)
            figures[name] = {**row, "questions": len(times), "in_flight_at_end": open_now, "artifact_mb_s": carried}
            cells = [f"{1000 * row[key]:.1f}" for key in ("p50", "p99", "max", "control_p99")]
            rows.append([name, len(times), *cells, f"{carried:.0f}" if download else ""])
    note = NOTE.format(period=PERIOD_S * 1000, batches=BATCHES, mb=artifact_bytes // 1_000_000, cores=cores)
    return Section("Time to answer /health", note, rows, figures)


def all_in_flight(http: httpx.Client, places: list[str]) -> int:
    """How many batches have not ended: all of them, or the load was not what the table says.

    Raises:
        InvalidRun: a batch has ended.
    """
    states = [http.get(place).json()["state"] for place in places]
    open_now = sum(state in ("queued", "running") for state in states)
    demand(open_now == len(places), f"only {open_now} of {len(places)} batches were still in flight at the end")
    return open_now


def _probe(service: LocalGenerator, echo_port: int, seconds: float) -> tuple[list[float], list[float]]:
    """Seconds to answer, of the service and of the control, asked side by side."""
    host, port = service.url.removeprefix("http://").rsplit(":", 1)
    question = f"GET /health HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.token}\r\n\r\n".encode()
    with ThreadPoolExecutor(1) as aside:
        control = aside.submit(_ask, "127.0.0.1", echo_port, b"HTTP/1.1 200 {}", seconds)
        return _ask(host, int(port), question, seconds), control.result()


def _ask(host: str, port: int, question: bytes, seconds: float) -> list[float]:
    times: list[float] = []
    with socket.create_connection((host, port), timeout=60) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.perf_counter()
        for i in range(int(seconds / PERIOD_S)):
            due = began + i * PERIOD_S
            time.sleep(max(0.0, due - time.perf_counter()))
            peer.sendall(question)
            answer = b""
            while b"}" not in answer:
                got = peer.recv(4096)
                demand(bool(got), "the service closed the connection")
                answer += got
            demand(answer.startswith(b"HTTP/1.1 200"), f"/health said {answer[:40]!r}")
            times.append(time.perf_counter() - due)
    return times


class _Fetcher:
    """A process that downloads an artifact again and again and counts bytes."""

    def __init__(self, service: LocalGenerator, path: str) -> None:
        command = [sys.executable, "-m", "measure.health", service.url, path]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(service.token + "\n")
        self._process.stdin.flush()
        demand(self._process.stdout.readline() == "first bytes\n", "the artifact could not be fetched")

    def stop(self, size: int) -> int:
        """Bytes that came; at least something of the promised size."""
        said, _ = self._process.communicate("stop\n", timeout=60)
        demand(self._process.returncode == 0, "the downloader failed")
        found = json.loads(said)
        demand(found["length"] == size, f"the artifact has {found['length']} bytes, not {size}")
        return int(found["bytes"])


def _fetch(url: str, path: str) -> None:
    import threading

    token = sys.stdin.readline().strip()
    stopped = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stopped.set()), daemon=True).start()
    total, length = 0, 0
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60, trust_env=False) as http:
        while not stopped.is_set():
            with http.stream("GET", f"/v1/artifacts/{path}") as stream:
                length = int(stream.headers["content-length"])
                for chunk in stream.iter_raw():
                    if not total:
                        print("first bytes", flush=True)
                    total += len(chunk)
                    if stopped.is_set():
                        break
    print(json.dumps({"bytes": total, "length": length}), flush=True)


if __name__ == "__main__":
    _fetch(*sys.argv[1:])
