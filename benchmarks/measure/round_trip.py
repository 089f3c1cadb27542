"""The client against the tests' independent baseline client, on the same server, store and line, in one run."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from measure.machine import ROOT
from measure.publishing import MB, Load, TimedServer
from measure.result import Section, demand

NOTE = (
    "From the ready response to the end of the client process, over a line with the given round trip in front of "
    "service and store. The baseline client is the tests' own, written from the public contract: one file after the "
    "other, each held in memory, nothing decoded, nothing read back, no condition on any PUT. Ours does all of that. "
    "Both run in turn on the same machine, whose two cores also carry the service, the store and the line: large files "
    "are bound by them, and ours moves every byte once more. What counts is the ratio."
)


def compared(base: Path, loads: list[Load], places: list[str], rtt_ms: float) -> Section:
    rows: list[list[Any]] = [["artifacts", "to", "round trip ms", "baseline s", "ours s", "times as fast"]]
    figures: dict[str, Any] = {}
    for load in loads:
        for place in places:
            seconds = {}
            for who in ("baseline", "ours"):
                seconds[who] = _one(base / f"{load.name}-{place}-{who}".replace(" ", "-"), load, place, rtt_ms, who)
            ratio = seconds["baseline"] / seconds["ours"]
            figures[f"{load.name} to {place} at {rtt_ms:g} ms"] = {**seconds, "ratio": ratio}
            shown = [f"{seconds[w]:.2f}" for w in ("baseline", "ours")]
            rows.append([load.name, place, f"{rtt_ms:g}", *shown, f"{ratio:.2f}"])
    return Section("Against the baseline client", NOTE, rows, figures)


@contextmanager
def _module(*arguments: str) -> Iterator[int]:
    """A process of `measure.memory_s3`; its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "measure.memory_s3", *arguments],
        cwd=ROOT / "benchmarks", stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def _one(base: Path, load: Load, place: str, rtt_ms: float, who: str) -> float:
    base.mkdir(parents=True)
    delay = str(rtt_ms / 2)
    samples = [
        {"name": f"s{i}", "prompt": "p", "num_frames": 5 if i < load.large else 1, "resolution": "256"}
        for i in range(load.count)
    ]
    (base / "batch.json").write_text(json.dumps(samples))
    with ExitStack() as stack:
        padding = {"vision.mp4": load.size} if load.size else {}
        server = stack.enter_context(TimedServer(base / "server", padding=padding))
        port = stack.enter_context(_module("--delay-ms", delay, "--relay-to", server.endpoint.rpartition(":")[2]))
        environ = {**os.environ, "NPA_COSMOS3_RAY_TOKEN": server.token, "XDG_STATE_HOME": str(base / "state")}
        output = str(base / "out")
        if place == "s3":
            store = stack.enter_context(_module("--delay-ms", delay))
            environ |= {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{store}", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s",
                "AWS_REGION": "us-east-1",
            }  # fmt: skip
            output = "s3://bench/out/"
        process = multiprocessing.get_context("spawn").Process(
            target=_run, args=(who, str(base / "batch.json"), output, f"http://127.0.0.1:{port}", environ)
        )
        process.start()
        process.join(1800)
        demand(process.exitcode == 0, f"the {who} client's process ended with {process.exitcode}")
        return time.perf_counter() - server.answered


def _run(who: str, batch: str, output: str, endpoint: str, environ: dict[str, str]) -> None:
    os.environ.update(environ)
    if who == "ours":
        from cosmos3_serve.client.submit import submit_batch

        submit_batch(input_path=batch, output_path=output, endpoint=endpoint)
        return
    sys.path.insert(0, str(ROOT / "tests"))
    from support import baseline_client

    text = Path(batch).read_text()
    baseline_client.run(input_text=text, output_path=output, endpoint=endpoint, token=environ["NPA_COSMOS3_RAY_TOKEN"])


def mixes(small: int, large_mb: int) -> list[Load]:
    """Small files, two large ones, and both together; without those of which there are none."""
    large = Load(f"2 of {large_mb} MB", 2, large_mb * MB, large=2)
    if not small or not large_mb:
        return [Load(f"{small} small", small)] if small else [large]
    both = Load(f"{small} small and {large.name}", small + 2, large_mb * MB, large=2)
    return [Load(f"{small} small", small), large, both]
