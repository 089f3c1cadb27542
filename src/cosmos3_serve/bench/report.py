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
    "latency_p95_ms", "latency_p99_ms", "cached_share", "media_misses", "warm_start",
)  # fmt: skip


def write(run: Run, directory: Path) -> list[Level]:
    """
    Returns:
        The rows, of a valid run.

    Raises:
        Refusal: code `run_invalid`, after the records and the findings were written; no file then holds a figure.
        InputError: the directory holds another run already, or cannot be written.
    """
    folder = _folder(directory)
    folder.keep(request.model_dump_json(exclude_none=True) for request in run.requests)
    findings = check(run)
    rows = [] if findings else levels(run)
    figures = {"levels": [row.model_dump(mode="json") for row in rows]}
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
    return {name: found.get(name) for name in COLUMNS}


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
        f"{run.started_at}, server {run.server}, **weights: {run.weights}**, load: {run.load}. {work.videos} videos of"
        f" {run.recipe.seconds} s at {run.recipe.fps} fps, {run.recipe.width}×{run.recipe.height} {run.recipe.codec},"
        f" sent as {work.transport}; {work.questions} questions each, {work.output_tokens} tokens an answer; {reuse}.",
        "",
        f"Client's machine: {', '.join(f'{name} {value}' for name, value in run.machine.items())}.",
        "",
        "| concurrency | repeat | req/s | tokens/s | TTFT mean / p50 / p95 ms | ITL p50 ms | latency p50 / p95 ms"
        " | cached | by replica |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in rows:
        cached = "" if row.cached_share is None else f"{row.cached_share:.0%}"
        lines.append(
            f"| {row.concurrency}{'*' if row.warm_start else ''} | {row.repeat + 1} | {row.requests_per_s:.2f}"
            f" | {row.output_tokens_per_s:.0f}"
            f" | {row.ttft.mean_ms:.0f} / {row.ttft.p50_ms:.0f} / {row.ttft.p95_ms:.0f}"
            f" | {'' if row.itl is None else f'{row.itl.p50_ms:.1f}'}"
            f" | {row.latency.p50_ms:.0f} / {row.latency.p95_ms:.0f} | {cached}"
            f" | {' / '.join(map(str, row.requests_by_replica))} |"
        )
    if all(request.cached_tokens is None for request in run.requests):
        lines += ["", "The server does not count cached tokens: that cold was cold and warm was warm is not checked."]
    lines += ["", "TTFT by question, mean ms:", ""]
    for row in rows:
        turns = ", ".join(f"{value:.0f}" for value in row.ttft_by_turn_ms)
        lines.append(f"- concurrency {row.concurrency}, repeat {row.repeat + 1}: {turns}")
    return "\n".join(lines) + "\n"


def require_new(directory: Path) -> None:
    """Raises InputError: the directory holds a run already (code `run_exists`)."""
    _folder(directory).require_new()


def _folder(directory: Path) -> RunFolder:
    return RunFolder(directory, RECORDS, figures=("levels",))
