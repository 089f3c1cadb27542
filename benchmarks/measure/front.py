"""The front door alone: our gateway, a plain proxy as control, and Dynamo's frontend, over instant replicas, in turns.

CPU is that of the processes between the client and the replicas, children included; replicas and the load have their
own. A cell counts only if every answer was whole and the replicas say that each question reached them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from measure import dynamo_frontend, stub_engine, videos
from measure.processes import cpu_s, tree
from measure.result import InvalidRun, Section, demand, quantile

from cosmos3_serve.reasoner.local import LocalReasoner
from cosmos3_serve.reasoner.setup import MODEL_NAME

HERE = Path(__file__).parent
REPLICAS = 2
TOKENS = 128
VIDEOS = 4
OURS, PLAIN, DYNAMO = "gateway", "plain proxy", "Dynamo 1.6.1"
TEXT, ONE, EIGHT, STREAM = "text, 100 bytes", "1 MiB video", "8 MiB video", f"{TOKENS}-token stream"
NOTE = (
    "Median (least to most) of {repeats} repeats of {seconds:g} s; systems take turns in who goes first. CPU ms per "
    "request: all processes between client and replicas, children included. Two instant replicas each. `gateway`: this "
    "service as it is deployed (Ray Serve, its own port, token, media gate, session routing); every video was asked "
    "about before. `plain proxy`: uvicorn and aiohttp without anything else, over the same replicas. Stream: a token "
    "every {gap:g} ms."
)


@dataclass(frozen=True)
class Kind:
    """One kind of request: `bodies` by model name; `tokens` of a stream, 0 for a whole answer."""

    name: str
    bodies: Callable[[str], list[str]]
    tokens: int = 0


@dataclass(frozen=True)
class Door:
    """One system under load.

    Args:
        pids: of the processes between client and replicas; `behind`: of the replicas.
        asked: how many questions the replicas have had.
    """

    name: str
    host: str
    port: int
    model: str
    headers: Mapping[str, str]
    pids: Callable[[], list[int]]
    behind: Callable[[], list[int]]
    asked: Callable[[], int]


class Load:
    """The process that asks."""

    def __init__(self) -> None:
        command = [sys.executable, str(HERE / "front_load.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin and self._process.stdout
        self._to, self._from = self._process.stdin, self._process.stdout

    def cell(self, door: Door, kind: Kind, concurrency: int, seconds: float) -> dict[str, Any]:
        """One cell; raises InvalidRun unless it is what it claims to be."""
        job = {
            "host": door.host, "port": door.port, "headers": dict(door.headers), "bodies": kind.bodies(door.model),
            "tokens": kind.tokens, "concurrency": concurrency, "seconds": seconds,
        }  # fmt: skip
        before = door.asked()
        self._say(json.dumps(job))
        demand(self._hear() == "ready", "the load did not connect")
        front, behind = door.pids(), door.behind()
        used, used_behind = cpu_s(front), cpu_s(behind)
        self._say("go")
        said = json.loads(self._hear())
        used, used_behind = cpu_s(front) - used, cpu_s(behind) - used_behind
        where = f"{door.name}, {kind.name}, {concurrency} at once"
        demand(not said["errors"], f"{where}: {len(said['errors'])} failed, first: {said['errors'][:1]}")
        demand(said["answers"] >= concurrency, f"{where}: {said['answers']} answers")
        reached = door.asked() - before
        demand(reached == said["answers"], f"{where}: {said['answers']} answers, but replicas had {reached} questions")
        demand(used > 0, f"{where}: the processes used no CPU")
        count = said["answers"]
        return {
            "requests": count,
            "req_s": count / said["wall"],
            "cpu_ms": 1000 * used / count,
            "replica_cpu_ms": 1000 * used_behind / count,
            "p50_ms": 1000 * quantile(said["seconds"], 0.5),
            "p99_ms": 1000 * quantile(said["seconds"], 0.99),
            "first_p50_ms": 1000 * quantile(said["first"], 0.5),
        }

    def _say(self, line: str) -> None:
        self._to.write(line + "\n")
        self._to.flush()

    def _hear(self) -> str:
        line = self._from.readline().strip()
        demand(bool(line), "the load process has ended")
        return line

    def close(self) -> None:
        self._to.close()
        self._process.wait(10)


def kinds(folder: Path, which: list[str]) -> list[Kind]:
    """The requests, their bodies written to files."""
    folder.mkdir(exist_ok=True)
    found: list[Kind] = []
    known: dict[tuple[str, str], list[str]] = {}

    def text(model: str, **fields: Any) -> list[str]:
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1, **fields}
        return [videos.write(folder, f"{model.replace('/', '-')}-{len(fields)}", body)]

    def video(size: int, model: str) -> list[str]:
        if (str(size), model) not in known:
            clips = [videos.noise_video(size, seed) for seed in range(VIDEOS)]
            known[str(size), model] = [
                videos.write(folder, f"{model.replace('/', '-')}-{size}-{n}", videos.about(clip, model))
                for n, clip in enumerate(clips)
            ]
        return known[str(size), model]

    for name in which:
        if name == TEXT:
            found.append(Kind(name, text))
        elif name == STREAM:
            found.append(Kind(name, lambda model: text(model, stream=True, max_tokens=TOKENS), TOKENS))
        else:
            size = (1 if name == ONE else 8) * videos.MIB
            found.append(Kind(name, lambda model, size=size: video(size, model)))  # type: ignore[misc]
    return found


def service(stack: ExitStack, base: Path, environ: Mapping[str, str] | None = None) -> tuple[LocalReasoner, list[str]]:
    """Our service over stub engines, and their URLs."""
    base.mkdir(parents=True, exist_ok=True)
    settings = {
        "COSMOS3_VLLM_PYTHON": str(stub_engine.command(base)),
        "COSMOS3_REASONER_WORKERS": str(REPLICAS),
        "COSMOS3_REASONER_MAX_NUM_SEQS": "256",
        **(environ or {}),
    }
    ours = stack.enter_context(LocalReasoner(settings, base))
    return ours, [replica["url"] for replica in ours.replicas]


def doors(stack: ExitStack, base: Path, environ: Mapping[str, str]) -> list[Door]:
    ours, urls = service(stack, base / "ours", environ)
    engines = [int(replica["engine"]["engine_pid"]) for replica in ours.replicas]

    def asked() -> int:
        found = [httpx.get(f"{url}/bench", trust_env=False).json() for url in urls]
        return sum(counts["text"] + counts["named"] + counts["sent"] for counts in found)

    gateways = list(ours.ready["gateway_pids"])
    demand(bool(gateways), "the service has no gateway")
    host, port = ours.url.removeprefix("http://").rsplit(":", 1)

    def on_path() -> list[int]:
        return [pid for gateway in gateways for pid in tree(gateway)]

    found = [Door(OURS, host, int(port), MODEL_NAME, ours.headers, on_path, lambda: engines, asked)]
    number = dynamo_frontend.free_port()
    proxy = subprocess.Popen([sys.executable, str(HERE / "plain_proxy.py"), str(number), *urls])
    stack.callback(proxy.wait)
    stack.callback(proxy.terminate)
    found.append(Door(PLAIN, "127.0.0.1", number, MODEL_NAME, {}, lambda: tree(proxy.pid), lambda: engines, asked))
    other = dynamo_frontend.find()
    if other is not None:
        demand(other[1] == "1.6.1", f"ai-dynamo is {other[1]}, the comparison is with 1.6.1")
        theirs = stack.enter_context(dynamo_frontend.Dynamo(other[0], base / "dynamo"))
        found.append(
            Door(DYNAMO, "127.0.0.1", theirs.port, "bench", {}, lambda: tree(theirs.pid),
                 lambda: theirs.worker_pids, theirs.asked)
        )  # fmt: skip
    return found


def warm(load: Load, door: Door, kind: Kind) -> None:
    """First questions: videos become known, connections and sessions are made, code is compiled."""
    until = time.monotonic() + 30
    while True:
        try:
            load.cell(door, kind, 8, 0.3)
            return
        except Exception:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def front(
    base: Path,
    *,
    seconds: float,
    repeats: int,
    concurrency: list[int],
    which: list[str],
    environ: Mapping[str, str] | None = None,
) -> list[Section]:
    """`environ`: settings of the service besides."""
    with ExitStack() as stack:
        every = doors(stack, base, environ or {})
        load = Load()
        stack.callback(load.close)
        asks = kinds(base / "bodies", which)
        for door in every:
            for kind in asks:
                warm(load, door, kind)
        cells: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
        for repeat in range(repeats):
            for kind in asks:
                for at_once in concurrency:
                    for door in every if repeat % 2 == 0 else every[::-1]:
                        cell = attempt(load, door, kind, at_once, seconds)
                        cells.setdefault((kind.name, at_once, door.name), []).append(cell)
    note = NOTE.format(repeats=repeats, seconds=seconds, gap=1000 * stub_engine.GAP_S)
    return [table(note, cells), aims(cells)]


def attempt(load: Load, door: Door, kind: Kind, at_once: int, seconds: float) -> dict[str, Any]:
    """A cell. What fails at the rival's is its own result, told without figures; anything of ours ends the run."""
    try:
        return load.cell(door, kind, at_once, seconds)
    except InvalidRun as reason:
        if door.name != DYNAMO:
            raise
        time.sleep(5)  # what it still works on must not count in the next cell
        return {"failed": str(reason)}


def _spread(cells: list[dict[str, Any]], name: str, digits: int) -> str:
    values = sorted(cell[name] for cell in cells)
    return f"{median(values):.{digits}f} ({values[0]:.{digits}f}–{values[-1]:.{digits}f})"


def table(note: str, cells: Mapping[tuple[str, int, str], list[dict[str, Any]]]) -> Section:
    rows: list[list[Any]] = [["request", "at once", "system", "CPU ms per request", "req/s", "p50 ms", "p99 ms"]]
    figures = []
    for (kind, at_once, door), found in sorted(cells.items(), key=lambda cell: (cell[0][0], cell[0][1])):
        if any("failed" in cell for cell in found):
            rows.append([kind, at_once, door, "no figures: answers failed", "", "", ""])
            figures.append({"request": kind, "at_once": at_once, "system": door, "repeats": found})
            continue
        rows.append(
            [kind, at_once, door, _spread(found, "cpu_ms", 2), _spread(found, "req_s", 0),
             _spread(found, "p50_ms", 1), _spread(found, "p99_ms", 1)]
        )  # fmt: skip
        figures.append({"request": kind, "at_once": at_once, "system": door, "repeats": found})
    return Section("Front door", note, rows, {"cells": figures})


def aims(cells: Mapping[tuple[str, int, str], list[dict[str, Any]]]) -> Section:
    """Each repeat's gateway against the same repeat's Dynamo, and the median of these ratios against the aim."""
    rows: list[list[Any]] = [["request", "at once", "aim", "measured", "reached"]]
    figures = []
    limits = {TEXT: 1.2, ONE: 0.25}
    for (kind, at_once, door), ours in sorted(cells.items(), key=lambda cell: (cell[0][0], cell[0][1])):
        theirs = cells.get((kind, at_once, DYNAMO))
        if theirs is not None and any("failed" in cell for cell in theirs):
            theirs = None
        if door != OURS or kind not in (TEXT, ONE, STREAM) or (kind != STREAM and theirs is None):
            continue
        if kind == STREAM:
            values, limit, unit = [cell["cpu_ms"] for cell in ours], 10.0, " ms"
        else:
            assert theirs is not None
            values = [a["cpu_ms"] / b["cpu_ms"] for a, b in zip(ours, theirs, strict=True)]
            limit, unit = limits[kind], " of Dynamo's"
        middle = median(values)
        shown = f"{middle:.2f}{unit} ({min(values):.2f}–{max(values):.2f})"
        rows.append([kind, at_once, f"at most {limit:g}{unit}", shown, "yes" if middle <= limit else "**no**"])
        figures.append({"request": kind, "at_once": at_once, "limit": limit, "values": values})
    note = "CPU of gateway and proxy processes; ratios within one repeat, side by side. Ours has no proxy process."
    return Section("Aims", note, rows, {"aims": figures})
