"""The client against the tests' independent baseline client, on the same server, store and line, in one run."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from measure.machine import ROOT
from measure.publishing import MB, Load, TimedServer
from measure.result import Section, demand
from support.baseline_server import BaselineHandler

NOTE = (
    "From the ready response to the end of the client process, over a line with the given round trip in front of "
    "service and store (none at 0 ms). The baseline client is the tests' own, written from the public contract: one "
    "file after the other, each held in memory, nothing decoded, nothing read back, no condition on any PUT. Ours does "
    "all of that, so it moves and hashes every byte once more. The two take turns on one machine, whose cores also "
    "carry service, store and line. Medians of the repeats; the ratio is the median of the repeats' ratios, with least "
    "and most. CPU is of the client's process."
)


def compared(base: Path, loads: list[Load], places: list[str], rtts_ms: list[float], repeats: int) -> Section:
    heads = ["artifacts", "to", "round trip ms", "baseline s", "ours s", "times as fast", "least", "most"]
    rows: list[list[Any]] = [[*heads, "baseline CPU s", "ours CPU s"]]
    figures: dict[str, Any] = {}
    for load, place, rtt_ms in ((load, place, rtt) for rtt in rtts_ms for load in loads for place in places):
        found: dict[str, list[tuple[float, float]]] = {"baseline": [], "ours": []}
        for number in range(repeats):
            for who in ("baseline", "ours") if number % 2 == 0 else ("ours", "baseline"):
                own = base / f"{load.name}-{place}-{rtt_ms:g}-{number}-{who}".replace(" ", "-")
                found[who].append(_one(own, load, place, rtt_ms, who))
                shutil.rmtree(own)
        ratios = [theirs[0] / ours[0] for theirs, ours in zip(found["baseline"], found["ours"], strict=True)]
        seconds = [median(s for s, _ in found[who]) for who in ("baseline", "ours")]
        cpu = [median(c for _, c in found[who]) for who in ("baseline", "ours")]
        figures[f"{load.name} to {place} at {rtt_ms:g} ms"] = {
            "baseline": found["baseline"], "ours": found["ours"], "ratios": ratios, "ratio": median(ratios),
        }  # fmt: skip
        shown = [median(ratios), min(ratios), max(ratios)]
        rows.append([load.name, place, f"{rtt_ms:g}", *(f"{x:.2f}" for x in (*seconds, *shown, *cpu))])
    return Section("Against the baseline client", NOTE, rows, figures)


class Server(TimedServer):
    """Sends an answer's body with its head: else each small file waits for an acknowledgement, which takes 40 ms."""

    @staticmethod
    def handler_class() -> type[BaselineHandler]:
        class Handler(BaselineHandler):
            disable_nagle_algorithm = True

        return Handler


@contextmanager
def _module(name: str, *arguments: str) -> Iterator[int]:
    """A process of `measure.<name>`; its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"measure.{name}", *arguments],
        cwd=ROOT / "benchmarks", stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def _one(base: Path, load: Load, place: str, rtt_ms: float, who: str) -> tuple[float, float]:
    """Seconds, and CPU seconds of the client's process."""
    base.mkdir(parents=True)
    samples = [
        {"name": f"s{i}", "prompt": "p", "num_frames": 5 if i < load.large else 1, "resolution": "256"}
        for i in range(load.count)
    ]
    (base / "batch.json").write_text(json.dumps(samples))
    with ExitStack() as stack:
        padding = {"vision.mp4": load.size} if load.size else {}
        server = stack.enter_context(Server(base / "server", padding=padding))

        def over_line(port: int) -> int:
            if not rtt_ms:
                return port
            return stack.enter_context(_module("line", "--to", str(port), "--delay-ms", str(rtt_ms / 2)))

        port = over_line(int(server.endpoint.rpartition(":")[2]))
        environ = {**os.environ, "NPA_COSMOS3_RAY_TOKEN": server.token, "XDG_STATE_HOME": str(base / "state")}
        output = str(base / "out")
        if place == "s3":
            store = over_line(stack.enter_context(_module("memory_s3")))
            environ |= {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{store}", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s",
                "AWS_REGION": "us-east-1",
            }  # fmt: skip
            output = "s3://bench/out/"
        spawn = multiprocessing.get_context("spawn")
        used = spawn.SimpleQueue()
        process = spawn.Process(
            target=_run, args=(who, str(base / "batch.json"), output, f"http://127.0.0.1:{port}", environ, used)
        )
        process.start()
        process.join(1800)
        seconds = time.perf_counter() - server.answered
        demand(process.exitcode == 0, f"the {who} client's process ended with {process.exitcode}")
        return seconds, used.get()


def _run(who: str, batch: str, output: str, endpoint: str, environ: dict[str, str], used: Any) -> None:
    os.environ.update(environ)
    if who == "ours":
        from cosmos3_serve.client.submit import submit_batch

        submit_batch(input_path=batch, output_path=output, endpoint=endpoint)
    else:
        sys.path.insert(0, str(ROOT / "tests"))
        from support import baseline_client

        text, token = Path(batch).read_text(), environ["NPA_COSMOS3_RAY_TOKEN"]
        baseline_client.run(input_text=text, output_path=output, endpoint=endpoint, token=token)
    used.put(time.process_time())


def mixes(small: int, large_mb: int) -> list[Load]:
    """Small files, two large ones, and both together; without those of which there are none."""
    large = Load(f"2 of {large_mb} MB", 2, large_mb * MB, large=2)
    if not small or not large_mb:
        return [Load(f"{small} small", small)] if small else [large]
    both = Load(f"{small} small and {large.name}", small + 2, large_mb * MB, large=2)
    return [Load(f"{small} small", small), large, both]
