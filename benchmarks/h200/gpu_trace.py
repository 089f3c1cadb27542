"""Where a decode step goes on the GPU, from a trace of torch's profiler: kernels by kind, and the time nothing runs."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

# First match wins. Names of compiled kernels name the operators around them, and attention is CUTLASS code too.
KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("compiled: norm, rope, quantise, activation", ("triton_",)),
    ("attention", ("flash::", "flashattn", "fmha", "prepare_varlen")),
    ("cache write", ("reshape_and_cache", "slot_mapping")),
    ("products of the layers", ("cutlass", "few_rows", "marlin")),
    ("output head", ("nvjet", "gemv", "cublas", "splitk", "gemm")),
    ("sampling", ("argmax", "gumbel", "sampl", "logit", "temperature", "penalt", "min_p", "topk")),
)
OTHER = "inputs, copies and the rest"


def kind_of(name: str) -> str:
    low = name.lower()
    return next((kind for kind, words in KINDS if any(word in low for word in words)), OTHER)


def load_events(path: Path) -> list[dict[str, Any]]:
    """Work on the GPU, in order: name, ts and dur in microseconds."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    said = json.loads(text)["traceEvents"]
    wanted = [e for e in said if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and "dur" in e]
    return sorted(wanted, key=lambda e: float(e["ts"]))


def steps(events: Sequence[Mapping[str, Any]], count: int) -> list[list[Mapping[str, Any]]]:
    """
    Args:
        count: decode steps of the request that was traced.

    Returns:
        Events between two runs of a kernel that runs once a step; ends are cut off.

    Raises:
        ValueError: no kernel runs about once a step.
    """
    often = Counter(str(e["name"]) for e in events if e.get("cat") == "kernel")
    once = [name for name, n in often.items() if abs(n - count) <= 3]
    if not once:
        raise ValueError(f"no kernel ran {count} times, once a step")
    longest = max(once, key=lambda name: sum(float(e["dur"]) for e in events if e["name"] == name))
    found: list[list[Mapping[str, Any]]] = []
    for event in events:
        if event["name"] == longest:
            found.append([])
        if found:
            found[-1].append(event)
    return found[2:-2]


def decode_step(events: Sequence[Mapping[str, Any]], count: int) -> dict[str, Any]:
    """Median step in microseconds: `step`, `busy`, `idle`, and by kind; `kernels` are the ten that take longest."""
    found = steps(events, count)
    lengths, busy, by_kind, by_name = [], [], defaultdict(list), defaultdict(list)
    runs: Counter[str] = Counter()
    for number, step in enumerate(found[:-1]):
        begin, end = float(step[0]["ts"]), float(found[number + 1][0]["ts"])
        lengths.append(end - begin)
        busy.append(_union(step, end))
        kinds, names = Counter[str](), Counter[str]()
        for event in step:
            kinds[kind_of(str(event["name"]))] += event["dur"]
            names[str(event["name"])] += event["dur"]
            runs[str(event["name"])] += 1
        for kind, took in kinds.items():
            by_kind[kind].append(took)
        for name, took in names.items():
            by_name[name].append(took)
    middle = {name: median(took) for name, took in by_name.items()}
    top = sorted(middle, key=lambda name: -middle[name])[:16]
    return {
        "steps": len(lengths),
        "step": round(median(lengths), 1),
        "busy": round(median(busy), 1),
        "idle": round(median(a - b for a, b in zip(lengths, busy, strict=True)), 1),
        "launches": round(sum(runs.values()) / len(lengths), 1),
        "by_kind": {kind: round(median(took), 1) for kind, took in sorted(by_kind.items())},
        "kernels": [[name[:110], round(middle[name], 1), round(runs[name] / len(lengths), 1)] for name in top],
    }


def _union(step: Sequence[Mapping[str, Any]], end: float) -> float:
    total, free = 0.0, 0.0
    for event in step:
        begin, stop = float(event["ts"]), min(end, float(event["ts"]) + float(event["dur"]))
        total += max(0.0, stop - max(begin, free))
        free = max(free, stop)
    return total
