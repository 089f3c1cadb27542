"""What a run leaves: records always, figures only of a valid run, as JSON, CSV and Markdown."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from cosmos3_serve.bench.records import Request, Run
from cosmos3_serve.bench.run_folder import RunFolder, cell
from cosmos3_serve.bench.statistics import Level, levels
from cosmos3_serve.bench.validity import check, require_valid

RECORDS = "requests.jsonl"
COLUMNS = (
    "concurrency", "repeat", "requests", "wall_s", "requests_per_s", "output_tokens_per_s", "ttft_mean_ms",
    "ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p95_ms", "itl_p99_ms", "latency_p50_ms",
    "latency_p95_ms", "latency_p99_ms", "ttft_by_turn_ms", "cached_share", "media_misses", "requests_by_replica",
    "sessions_new", "sessions_hit", "sessions_moved", "sessions_spilled", "right",
    "warm_start",
)  # fmt: skip
# AIPerf's own files of a run. Nobody has checked them, and they stay whatever the run is worth.
RAW = "aiperf-not-checked"
UNCHECKED = "The server does not count cached tokens: that cold was cold and warm was warm is not checked."


def write(run: Run, directory: Path) -> list[Level]:
    """
    Returns:
        The rows, of a valid run.

    Raises:
        Refusal: code `run_invalid`, after the records and the findings were written; no file that this writes then
            holds a figure.
        InputError: the directory holds another run already, or cannot be written.
    """
    folder = _folder(directory)
    folder.keep(request.model_dump_json(exclude_none=True) for request in run.requests)
    findings = check(run)
    rows = [] if findings else levels(run)
    figures = {
        "levels": [row.model_dump(mode="json") for row in rows],
        "temperature_checked": run.temperature_checked,
    }
    folder.conclude(run.model_dump(mode="json", exclude={"requests"}), findings, figures)
    require_valid(run)
    folder.show(table(rows), markdown(run, rows))
    return rows


def read(directory: Path) -> Run:
    """A run as it was written; its validity is checked anew, whatever the file says.

    Raises:
        InputError: code `run_unreadable`.
        Refusal: code `run_invalid`: its records do not hold what its figures would claim.
    """
    run = _folder(directory).restore(
        lambda head, lines: Run(**head, requests=[Request.model_validate_json(line) for line in lines])
    )
    require_valid(run)
    return run


def table(rows: list[Level]) -> str:
    """CSV, one line a level and repeat."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: cell(value) for name, value in flat(row).items()})
    return text.getvalue()


def flat(row: Level) -> dict[str, Any]:
    """A row by the names of the CSV's columns."""
    found = row.model_dump()
    for name in ("ttft", "itl", "latency"):
        spread = found.pop(name) or {}
        found |= {f"{name}_{key}": value for key, value in spread.items()}
    found |= {f"sessions_{state}": count for state, count in found.pop("sessions").items()}
    found["ttft_by_turn_ms"] = "/".join(f"{value:.4g}" for value in row.ttft_by_turn_ms)
    found["requests_by_replica"] = _by_replica(row)
    return {name: found.get(name) for name in COLUMNS}


def weights(run: Run) -> str:
    """As a report says them."""
    return run.weights + (" (the caller's statement, not the server's)" if run.weights_by == "caller" else "")


def _fleet(run: Run) -> str:
    if run.replicas is None:
        return ""
    return f"{run.replicas} replica(s){' (the caller says)' if run.fleet_by == 'caller' else ''}, "


def _by_replica(row: Level) -> str:
    return "/".join(map(str, row.requests_by_replica))


def markdown(run: Run, rows: list[Level]) -> str:
    work = run.workload
    reuse = (
        "fresh videos at each level"
        if work.fresh
        else "the same videos at each level: rows marked * began with caches that may have held them"
    )
    lines = [
        f"# {run.model}, {work.profile}",
        "",
        f"{run.started_at}, server {run.server}, {_fleet(run)}**weights: {weights(run)}**, load: {run.load}."
        f" {work.videos} videos of {run.recipe.seconds} s at {run.recipe.fps} fps,"
        f" {run.recipe.width}×{run.recipe.height} {run.recipe.codec}, content {run.recipe.content}, sent as"
        f" {work.transport}; {work.questions} questions each, {run.length} tokens an answer; {reuse}.",
        "",
        f"Client's machine: {', '.join(f'{name} {value}' for name, value in run.machine.items())}.",
        "",
        "| concurrency | repeat | req/s | tokens/s | TTFT mean / p50 / p95 / p99 ms | ITL p50 / p99 ms"
        " | latency p50 / p95 / p99 ms | cached | by replica | sessions new / hit / moved / spilled |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for row in rows:
        cached = "" if row.cached_share is None else f"{row.cached_share:.0%}"
        lines.append(
            f"| {row.concurrency}{'*' if row.warm_start else ''} | {row.repeat + 1} | {row.requests_per_s:.2f}"
            f" | {row.output_tokens_per_s:.0f}"
            f" | {row.ttft.mean_ms:.0f} / {row.ttft.p50_ms:.0f} / {row.ttft.p95_ms:.0f} / {row.ttft.p99_ms:.0f}"
            f" | {'' if row.itl is None else f'{row.itl.p50_ms:.1f} / {row.itl.p99_ms:.1f}'}"
            f" | {row.latency.p50_ms:.0f} / {row.latency.p95_ms:.0f} / {row.latency.p99_ms:.0f} | {cached}"
            f" | {_by_replica(row)} | {' / '.join(map(str, row.sessions.values()))} |"
        )
    if not run.temperature_checked:
        lines += ["", UNCHECKED]
    if any(row.right is not None for row in rows):
        lines += ["", "Right answers:", ""]
        for row in rows:
            lines.append(f"- concurrency {row.concurrency}, repeat {row.repeat + 1}: {row.right or 0:.1%}")
    lines += ["", "TTFT by question, mean ms:", ""]
    for row in rows:
        turns = ", ".join(f"{value:.0f}" for value in row.ttft_by_turn_ms)
        lines.append(f"- concurrency {row.concurrency}, repeat {row.repeat + 1}: {turns}")
    return "\n".join(lines) + "\n"


def require_new(directory: Path) -> None:
    """Raises InputError: the directory holds a run already, or what AIPerf left of one (code `run_exists`)."""
    _folder(directory).require_new(RAW)


def _folder(directory: Path) -> RunFolder:
    return RunFolder(directory, RECORDS, figures=("levels", "temperature_checked"))
