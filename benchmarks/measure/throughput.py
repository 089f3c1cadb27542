"""Throughput through the service over the engine called directly, with the same waves, in one run."""

from __future__ import annotations

import os
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from measure import load
from measure.apart import apart
from measure.direct import DirectEngine
from measure.processes import cpu_s, replica, tree
from measure.result import Section, demand

from cosmos3_serve.generator.local import LocalGenerator

Shapes = dict[str, tuple[int, dict[str, Any]]]
HEADS = ["samples", "direct s", "service s", "ratio", "overhead ms/sample", "each repeat", "CPU s direct/service"]
NOTE = (
    "Wall time of the same samples, the fastest repeat of each side, in the same waves of {limit}, direct and "
    "through the service in turn. Direct: the engine in a process of its own, a wave denoising while the wave "
    "before is decoded, encoded and written. Service: from the POST until the event of the end arrives, so it "
    "also holds HTTP, validation, the ledger with its fsyncs, Ray Serve's handle and coalescing, the hashing of "
    "every file, the response and the events. A repeat counts only if both made the same bytes and every wave of "
    "the service was full. CPU is that of the whole process tree. Overhead is the service's extra wall time per "
    "sample: what stays the same when a real model takes minutes. On a machine that others keep busy single "
    "repeats say little: a ratio above 1 is theirs, not ours."
)
APART = (
    "The same, but the engine has one core to itself on either side and everything else the others. Above, engine and "
    "service compete for the cores, and what the service's processes use is taken from the engine; where the engine is "
    "on a GPU it is not."
)


def throughput(
    service: LocalGenerator,
    direct: DirectEngine,
    limit: int,
    shapes: Shapes,
    repeats: int,
    *,
    set_apart: bool = False,
) -> Section:
    """What each shape takes on either side.

    Args:
        shapes: name to how many samples a batch has, and their fields.
        set_apart: the engine has a core to itself; needs two.
    """
    with _where(service, direct, set_apart):
        rows, figures = _measured(service, direct, limit, shapes, repeats)
    if set_apart:
        return Section("The same, the engine on a core of its own", APART, rows, figures)
    title = "Throughput through the service over the engine called directly"
    return Section(title, NOTE.format(limit=limit), rows, figures)


def _measured(
    service: LocalGenerator, direct: DirectEngine, limit: int, shapes: Shapes, repeats: int
) -> tuple[list[list[Any]], dict[str, Any]]:
    rows: list[list[Any]] = [HEADS]
    figures: dict[str, Any] = {}
    for name, (count, fields) in shapes.items():
        warm = _pair(service, direct, limit, f"warm-{name}", limit, fields)
        demand(warm["service_s"] > 0, "nothing ran")
        pairs = [
            _pair(service, direct, limit, f"{name}-{i}", count, fields, service_first=i % 2 == 1)
            for i in range(repeats)
        ]
        figures[name], row = _told(f"{count} × {name}", count, pairs)
        figures[name]["fields"] = fields
        rows.append(row)
    return rows, figures


def _where(service: LocalGenerator, direct: DirectEngine, set_apart: bool) -> AbstractContextManager[None]:
    if not set_apart:
        return nullcontext()
    model = replica(service.pid, "model replica")
    return apart([model, direct.pid], [os.getpid(), *(pid for pid in tree(service.pid) if pid != model)])


def _told(title: str, count: int, pairs: list[dict[str, float]]) -> tuple[dict[str, Any], list[str]]:
    """The figures of one shape, and its row of the table."""
    fastest = [min(pair[key] for pair in pairs) for key in ("direct_s", "service_s")]
    used = [sum(pair[key] for pair in pairs) for key in ("direct_cpu_s", "service_cpu_s")]
    ratios = [pair["direct_s"] / pair["service_s"] for pair in pairs]
    figures = {
        "samples": count,
        "repeats": pairs,
        "ratio_of_fastest": fastest[0] / fastest[1],
        "median_ratio": statistics.median(ratios),
        "overhead_ms_per_sample": (fastest[1] - fastest[0]) / count * 1000,
        "cpu_ratio": used[0] / used[1],
    }
    cells = [f"{fastest[0]:.2f}", f"{fastest[1]:.2f}", f"**{fastest[0] / fastest[1]:.3f}**"]
    cells += [f"{figures['overhead_ms_per_sample']:.0f}", " ".join(f"{ratio:.2f}" for ratio in ratios)]
    return figures, [title, *cells, f"{used[0]:.1f} / {used[1]:.1f}"]


def _pair(
    service: LocalGenerator,
    direct: DirectEngine,
    limit: int,
    name: str,
    count: int,
    fields: dict[str, Any],
    *,
    service_first: bool = False,
) -> dict[str, float]:
    body = load.samples(count, **fields)
    alone = None if service_first else direct.run(name, body)
    with load.client(service) as http:
        pids = tree(service.pid)
        began, used = time.perf_counter(), cpu_s(pids)
        place = load.post(http, body)
        load.wait(http, place)
        seconds, used = time.perf_counter() - began, cpu_s(pids) - used
        answer = load.response(http, place, count)
    alone = alone or direct.run(name, body)
    waves = [sample["wave"]["inference_batch"] for sample in answer["samples"]]
    demand(waves == [limit] * count, f"the service ran other waves than the direct engine: {waves}")
    mine = {_inside(artifact["path"]): artifact["sha256"] for artifact in answer["artifacts"]}
    demand({_inside(path): sha for path, sha in alone["files"].items()} == mine, "service and engine made other bytes")
    return {
        "direct_s": alone["seconds"],
        "service_s": seconds,
        "direct_cpu_s": alone["cpu_s"],
        "service_cpu_s": used,
    }


def _inside(path: str) -> str:
    """The path without the batch's id."""
    return "/".join(Path(path).parts[1:])
