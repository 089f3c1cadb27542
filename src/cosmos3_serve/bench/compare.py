"""Two runs side by side: the same work, ratios over paired repeats, and how sure they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cosmos3_serve.bench.records import Run
from cosmos3_serve.bench.statistics import Level, levels, ratio_interval
from cosmos3_serve.errors import InputError


@dataclass(frozen=True, slots=True)
class Gain:
    """One figure at one concurrency. `ratio` is B over A (geometric mean over repeats).

    Args:
        low, high: its 95 % interval; None where there is one repeat only.
    """

    concurrency: int
    figure: str
    a: float
    b: float
    ratio: float
    low: float | None
    high: float | None


FIGURES: dict[str, Callable[[Level], float]] = {
    "requests/s": lambda row: row.requests_per_s,
    "TTFT mean ms": lambda row: row.ttft.mean_ms,
    "TTFT p50 ms": lambda row: row.ttft.p50_ms,
    "TTFT p95 ms": lambda row: row.ttft.p95_ms,
    "latency p50 ms": lambda row: row.latency.p50_ms,
}


def compare(a: Run, b: Run) -> list[Gain]:
    """
    Raises:
        InputError: the runs did not do the same work (code `runs_not_matched`), with every difference.
    """
    differences = _differences(a, b)
    if differences:
        raise InputError(
            f"the runs are no match: {'; '.join(differences)}",
            code="runs_not_matched",
            remedy="run both with the same videos, questions, tokens, levels, repeats and transport",
        )
    rows_a, rows_b = _by_level(levels(a)), _by_level(levels(b))
    gains = []
    for concurrency in a.workload.concurrency:
        for name, figure in FIGURES.items():
            pairs = [(figure(x), figure(y)) for x, y in zip(rows_a[concurrency], rows_b[concurrency], strict=True)]
            interval = ratio_interval(pairs)
            mean_a, mean_b = sum(x for x, _ in pairs) / len(pairs), sum(y for _, y in pairs) / len(pairs)
            ratio, low, high = interval or (mean_b / mean_a, None, None)
            gains.append(Gain(concurrency, name, mean_a, mean_b, ratio, low, high))
    return gains


def markdown(a: Run, b: Run, gains: list[Gain]) -> str:
    repeats = a.workload.repeats
    sure = f"{repeats} paired repeats, 95 % interval" if repeats > 1 else "one repeat: no interval can be given"
    lines = [
        f"# {b.workload.profile} over {a.workload.profile}",
        "",
        f"A: {a.server}, {a.workload.profile}, weights {a.weights}, {a.started_at}. "
        f"B: {b.server}, {b.workload.profile}, weights {b.weights}, {b.started_at}. {sure}.",
        "",
        "| concurrency | figure | A | B | B / A |",
        "| ---: | --- | ---: | ---: | ---: |",
    ]
    for gain in gains:
        interval = "" if gain.low is None else f" ({gain.low:.2f} to {gain.high:.2f})"
        lines.append(
            f"| {gain.concurrency} | {gain.figure} | {gain.a:.2f} | {gain.b:.2f} | {gain.ratio:.2f}{interval} |"
        )
    return "\n".join(lines) + "\n"


def _differences(a: Run, b: Run) -> list[str]:
    found = []
    for name in ("videos", "questions", "output_tokens", "concurrency", "repeats", "fresh", "transport"):
        one, other = getattr(a.workload, name), getattr(b.workload, name)
        if one != other:
            found.append(f"{name} {one} against {other}")
    if a.recipe != b.recipe:
        found.append("another recipe of the videos")
    elif not a.workload.fresh and {v.sha256 for v in a.videos} != {v.sha256 for v in b.videos}:
        found.append("other videos")
    for name in ("model", "weights", "load"):
        if getattr(a, name) != getattr(b, name):
            found.append(f"{name} {getattr(a, name)!r} against {getattr(b, name)!r}")
    return found


def _by_level(rows: list[Level]) -> dict[int, list[Level]]:
    found: dict[int, list[Level]] = {}
    for row in sorted(rows, key=lambda row: row.repeat):
        found.setdefault(row.concurrency, []).append(row)
    return found
