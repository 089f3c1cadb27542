"""What a generator's run leaves: records always, figures only of a valid run, as JSON, CSV and Markdown."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from cosmos3_serve.bench.generator.records import Run, Sample
from cosmos3_serve.bench.generator.statistics import Row, rows
from cosmos3_serve.bench.generator.validity import check, require_valid
from cosmos3_serve.bench.run_folder import RunFolder, cell

RECORDS = "samples.jsonl"
FIXED = (
    "arrivals", "mix", "repeat", "samples", "wall_s", "samples_per_s", "frames_per_s", "latency_mean_ms",
    "latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "latest_ms", "mean_coalesced", "mean_inference", "coalesced",
    "inference", "mixed_batches", "shown",
)  # fmt: skip


def write(run: Run, directory: Path) -> list[Row]:
    """
    Returns:
        The rows, of a valid run.

    Raises:
        Refusal: code `run_invalid`, after the records and the findings were written; no file then holds a figure.
        InputError: the directory holds another run already, or cannot be written.
    """
    folder = _folder(directory)
    folder.keep(sample.model_dump_json() for sample in run.samples)
    findings = check(run)
    found = [] if findings else rows(run)
    figures = {"rows": [row.model_dump(mode="json") for row in found], "includes": includes(run)}
    folder.conclude(run.model_dump(mode="json", exclude={"samples"}), findings, figures)
    require_valid(run)
    folder.show(table(found), markdown(run, found))
    return found


def read(directory: Path) -> Run:
    """A run as it was written; its validity is checked anew, whatever the file says.

    Raises:
        InputError: code `run_unreadable`.
        Refusal: code `run_invalid`.
    """
    run = _folder(directory).restore(
        lambda head, lines: Run(**head, samples=[Sample.model_validate_json(line) for line in lines])
    )
    require_valid(run)
    return run


def require_new(directory: Path) -> None:
    """Raises InputError: the directory holds a run already (code `run_exists`)."""
    _folder(directory).require_new()


def _folder(directory: Path) -> RunFolder:
    return RunFolder(directory, RECORDS, figures=("rows", "includes"))


def includes(run: Run) -> str:
    """What a sample per second holds, and what it does not."""
    fetched = (
        "the download of every artifact and the comparison of its hash"
        if run.workload.fetch
        else "no download of the artifacts"
    )
    return (
        "From the moment at which the first request of a cell is due until the last one has its answer: HTTP, "
        "validation, the ledger, queue, coalescing, denoising, decoding, encoding, hashing and the response; "
        f"{fetched}; neither the start of the service nor the first sample of each shape, which is made before. "
        "Latency runs from when a request was due, so a wait before sending is in it."
    )


def columns(found: list[Row]) -> list[str]:
    names = dict.fromkeys(name for row in found for name in row.phases)
    return [*FIXED, *(f"{name}_{figure}" for name in names for figure in ("mean_ms", "p95_ms"))]


def flat(row: Row) -> dict[str, Any]:
    """A row by the names of the CSV's columns."""
    found = row.model_dump(exclude={"latency", "phases"})
    found |= {"mean_coalesced": row.mean_coalesced, "mean_inference": row.mean_inference}
    found |= {name: sizes(found[name]) for name in ("coalesced", "inference")}
    found |= {f"latency_{key}": value for key, value in row.latency.model_dump().items()}
    for name, spread in row.phases.items():
        found |= {f"{name}_mean_ms": spread.mean_ms, f"{name}_p95_ms": spread.p95_ms}
    return found


def table(found: list[Row]) -> str:
    """CSV, one line a cell and repeat."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns(found), lineterminator="\n")
    writer.writeheader()
    for row in found:
        known = flat(row)
        writer.writerow({name: cell(known.get(name)) for name in writer.fieldnames})
    return text.getvalue()


def sizes(batches: dict[int, int] | None) -> str:
    """`3×4 1×2`: three batches of four and one of two, the largest first; empty where nobody tells."""
    return " ".join(f"{count}×{size}" for size, count in sorted((batches or {}).items(), reverse=True))


def markdown(run: Run, found: list[Row]) -> str:
    work, service = run.workload, run.service
    limit = "" if service.max_num_seqs is None else f", at most {service.max_num_seqs} in the network together"
    lines = [
        f"# {service.model}, generator",
        "",
        f"{run.started_at}, {service.backend} {service.revision}, **weights: {service.weights}**, guardrails"
        f" {'on' if service.guardrails else 'off'}; at most {service.max_batch_size} coalesced in a window of"
        f" {service.window_s:g} s{limit}. {work.requests} requests a cell, {work.samples} sample(s) each,"
        f" {work.repeats} repeat(s).",
        "",
        f"Client's machine: {', '.join(f'{name} {value}' for name, value in run.machine.items())}.",
        "",
        f"What throughput includes. {includes(run)}",
        "",
        "| arrivals | shape (frames×steps) | repeat | samples/s | frames/s | latency p50 / p95 / p99 ms"
        " | coalesced (mean) | inference batches (mean) |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for row in found:
        batches = [
            "not told" if held is None else f"{sizes(held)} ({mean:.2f})"
            for held, mean in ((row.coalesced, row.mean_coalesced), (row.inference, row.mean_inference))
        ]
        lines.append(
            f"| {row.arrivals} | {row.mix} | {row.repeat + 1} | {row.samples_per_s:.2f} | {row.frames_per_s:.2f}"
            f" | {row.latency.p50_ms:.0f} / {row.latency.p95_ms:.0f} / {row.latency.p99_ms:.0f}"
            f" | {' | '.join(batches)} |"
        )
    if any(row.shown is not None for row in found):
        lines += [
            "",
            "Share of the samples that show the block-world scene that they were asked for, by their pixels:",
            "",
        ]
        for row in found:
            share = "not judged" if row.shown is None else f"{row.shown:.1%}"
            lines.append(f"- {row.arrivals}, {row.mix}, repeat {row.repeat + 1}: {share}")
    if any(row.phases for row in found):
        lines += ["", "Seconds of a sample by phase, mean (p95) ms; what shares a batch has that batch's time:", ""]
        for row in found:
            told = ", ".join(f"{name} {s.mean_ms:.0f} ({s.p95_ms:.0f})" for name, s in row.phases.items())
            lines.append(f"- {row.arrivals}, {row.mix}, repeat {row.repeat + 1}: {told}")
    return "\n".join(lines) + "\n"
