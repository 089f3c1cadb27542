"""Two runs of the same work: ratios over their repeats, how sure they are, and what they do not say."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from cosmos3_serve.bench.records import Run
from cosmos3_serve.bench.report import UNCHECKED, weights
from cosmos3_serve.bench.run_folder import cell
from cosmos3_serve.bench.statistics import Level, levels, ratio_interval
from cosmos3_serve.errors import InputError

SESSIONS_A_REPLICA = 8


@dataclass(frozen=True, slots=True)
class Gain:
    """One figure at one concurrency. `ratio` is B over A (geometric mean over repeats).

    Args:
        low, high: its 95 % interval; None where there is one repeat only.
        warm_start: in a repeat or in all, caches may have held the videos when the level began.
    """

    concurrency: int
    figure: str
    a: float
    b: float
    ratio: float
    low: float | None
    high: float | None
    warm_start: bool = False


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
            remedy="run both with the same videos, questions, tokens, levels, repeats, transport and replicas",
        )
    rows_a, rows_b = _by_level(levels(a)), _by_level(levels(b))
    gains = []
    for concurrency in a.workload.concurrency:
        for name, figure in FIGURES.items():
            pairs = [(figure(x), figure(y)) for x, y in zip(rows_a[concurrency], rows_b[concurrency], strict=True)]
            interval = ratio_interval(pairs)
            mean_a, mean_b = sum(x for x, _ in pairs) / len(pairs), sum(y for _, y in pairs) / len(pairs)
            ratio, low, high = interval or (mean_b / mean_a, None, None)
            warm = any(row.warm_start for row in (*rows_a[concurrency], *rows_b[concurrency]))
            gains.append(Gain(concurrency, name, mean_a, mean_b, ratio, low, high, warm))
    return gains


def notes(a: Run, b: Run) -> list[str]:
    """What a reader of the ratios must know, one sentence each."""
    repeats = a.workload.repeats
    found = [
        f"{repeats} repeats of each of two separate runs, set against each other in their order: the 95 % interval"
        " holds the scatter of the repeats, and nothing of what changed on the machine between the runs."
        if repeats > 1
        else "One repeat: no interval can be given."
    ]
    if not a.workload.fresh and repeats * len(a.workload.concurrency) > 1:
        found.append("Rows marked * began, at least once, with caches that may have held the videos.")
    if not same_videos(a, b):
        found.append("The runs asked about other videos of the same recipe.")
    found += [
        f"{name}: the server does not say how many replicas it has, nor did the caller (--replicas): whether both"
        " fleets have one size is not checked."
        for name, run in (("A", a), ("B", b))
        if fleet(run) is None
    ]
    found += [f"{name}: {UNCHECKED}" for name, run in (("A", a), ("B", b)) if not run.temperature_checked]
    return found


def fleet(run: Run) -> int | None:
    """How many replicas served the run: as it was told, else as many as answered; None: nobody can say.

    If sessions are spread evenly, `SESSIONS_A_REPLICA` of them a replica miss one replica in less than one of a
    thousand runs; from fewer of them nothing is concluded.
    """
    if run.replicas is not None:
        return run.replicas
    seen = {request.replica for request in run.requests}
    sessions = len({(r.repeat, r.concurrency, r.video) for r in run.requests})
    if None in seen or sessions < SESSIONS_A_REPLICA * (len(seen) + 1):
        return None
    return len(seen)


def same_videos(a: Run, b: Run) -> bool:
    return {video.sha256 for video in a.videos} == {video.sha256 for video in b.videos}


def as_dict(a: Run, b: Run, gains: list[Gain]) -> dict[str, object]:
    """Everything that the comparison says."""
    about = {
        name: {"server": run.server, "profile": run.workload.profile, "weights": run.weights,
               "weights_by": run.weights_by, "started_at": run.started_at,
               "temperature_checked": run.temperature_checked, "replicas": fleet(run)}
        for name, run in (("a", a), ("b", b))
    }  # fmt: skip
    return about | {"same_videos": same_videos(a, b), "notes": notes(a, b), "gains": [asdict(gain) for gain in gains]}


def table(gains: list[Gain]) -> str:
    """CSV, one line a figure and level."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(Gain)]
    writer.writerow(names)
    writer.writerows([cell(getattr(gain, name)) for name in names] for gain in gains)
    return text.getvalue()


def write(a: Run, b: Run, gains: list[Gain], directory: Path) -> None:
    """`comparison.json`, `.csv` and `.md`. Raises InputError: they cannot be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "comparison.json").write_text(json.dumps(as_dict(a, b, gains), indent=1) + "\n", encoding="utf-8")
        (directory / "comparison.csv").write_text(table(gains), encoding="utf-8")
        (directory / "comparison.md").write_text(markdown(a, b, gains), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write into {directory}: {error.strerror}") from None


HEADS = ("concurrency", "figure", "A", "B", "B / A (95 % interval)")


def cells(gain: Gain) -> list[str]:
    """A row under `HEADS`."""
    interval = "" if gain.low is None else f" ({gain.low:.2f} to {gain.high:.2f})"
    level = f"{gain.concurrency}{'*' if gain.warm_start else ''}"
    return [level, gain.figure, f"{gain.a:.2f}", f"{gain.b:.2f}", f"{gain.ratio:.2f}{interval}"]


def title(a: Run, b: Run) -> str:
    return f"{b.workload.profile} over {a.workload.profile}"


def described(name: str, run: Run) -> str:
    size = fleet(run)
    replicas = "" if size is None else f"{size} replica(s), "
    return f"{name}: {run.server}, {replicas}{run.workload.profile}, weights {weights(run)}, {run.started_at}."


def markdown(a: Run, b: Run, gains: list[Gain]) -> str:
    lines = [
        f"# {title(a, b)}",
        "",
        " ".join([described("A", a), described("B", b), *notes(a, b)]),
        "",
        f"| {' | '.join(HEADS)} |",
        "| ---: | --- | ---: | ---: | ---: |",
    ]
    lines += [f"| {' | '.join(cells(gain))} |" for gain in gains]
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
    sizes = [fleet(run) for run in (a, b)]
    if None not in sizes and sizes[0] != sizes[1]:
        found.append(f"a fleet of {sizes[0]} replicas against {sizes[1]}")
    for name in ("model", "weights", "load"):
        if getattr(a, name) != getattr(b, name):
            found.append(f"{name} {getattr(a, name)!r} against {getattr(b, name)!r}")
    return found


def _by_level(rows: list[Level]) -> dict[int, list[Level]]:
    found: dict[int, list[Level]] = {}
    for row in sorted(rows, key=lambda row: row.repeat):
        found.setdefault(row.concurrency, []).append(row)
    return found
