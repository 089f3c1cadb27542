"""PNG plots of a generator's run, and its one HTML page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cosmos3_serve.bench.generator.records import Run
from cosmos3_serve.bench.generator.report import columns, flat, includes
from cosmos3_serve.bench.generator.statistics import Row, rows
from cosmos3_serve.bench.plots import document, drawing, saved, table, text

BARS: dict[str, tuple[str, dict[str, Callable[[Row], float | None]]]] = {
    "throughput": ("samples per second", {"": lambda row: row.samples_per_s}),
    "latency": ("latency, ms", {"p50": lambda row: row.latency.p50_ms, "p95": lambda row: row.latency.p95_ms}),
    "batches": (
        "samples in a batch, mean",
        {"coalesced": lambda row: row.mean_coalesced, "inference": lambda row: row.mean_inference},
    ),
}


def draw(run: Run, directory: Path) -> list[Path]:
    """A PNG a figure, a bar a cell (the mean of its repeats, each of them a dot); and the phases. The run is valid.

    Raises:
        UsageError: matplotlib is not installed.
    """
    pyplot = drawing()
    by_cell: dict[str, list[Row]] = {}
    for row in rows(run):
        by_cell.setdefault(f"{row.arrivals}\n{row.mix}", []).append(row)
    made = []
    for name, (label, figures) in BARS.items():
        if all(figure(row) is None for group in by_cell.values() for row in group for figure in figures.values()):
            continue  # the service does not tell: no picture rather than an empty one
        chart, axes = _chart(pyplot, len(by_cell))
        for number, (title, figure) in enumerate(figures.items()):
            _bars(axes, list(by_cell.values()), figure, title, number, len(figures))
        made.append(_finished(chart, axes, run, label, list(by_cell), directory / f"{name}.png"))
        pyplot.close(chart)
    phases = list(dict.fromkeys(name for group in by_cell.values() for row in group for name in row.phases))
    if phases:
        chart, axes = _chart(pyplot, len(by_cell))
        floor = [0.0] * len(by_cell)
        for name in phases:
            means = [
                _mean([row.phases[name].mean_ms for row in group if name in row.phases]) for group in by_cell.values()
            ]
            axes.bar(range(len(by_cell)), means, bottom=floor, label=name)
            floor = [below + mean for below, mean in zip(floor, means, strict=True)]
        made.append(
            _finished(chart, axes, run, "a sample's time by phase, mean, ms", list(by_cell), directory / "phases.png")
        )
        pyplot.close(chart)
    return made


def page(run: Run, plots: Sequence[Path], directory: Path) -> Path:
    """Table and pictures in one file without a link to anything."""
    service, found = run.service, rows(run)
    heads = columns(found)
    return document(
        [
            f"<h1>{text(service.model)}, generator</h1>",
            f"<p>{text(run.started_at)}, {text(service.backend)} {text(service.revision)}, <strong>weights:"
            f" {text(service.weights)}</strong>. {run.workload.requests} requests a cell.</p>",
            f"<p>{text(includes(run))}</p>",
            f"<p>{text(', '.join(f'{name} {value}' for name, value in run.machine.items()))}</p>",
            table(heads, [[flat(row).get(head) for head in heads] for row in found]),
        ],
        plots,
        directory,
    )


def _chart(pyplot: Any, cells: int) -> tuple[Any, Any]:
    chart, axes = pyplot.subplots(figsize=(max(6.0, 1.2 * cells), 4), dpi=120)
    return chart, axes


def _bars(
    axes: Any, groups: list[list[Row]], figure: Callable[[Row], float | None], title: str, number: int, of: int
) -> None:
    width = 0.8 / of
    places = [place + (number - (of - 1) / 2) * width for place in range(len(groups))]
    values = [[value for row in group if (value := figure(row)) is not None] for group in groups]
    axes.bar(places, [_mean(each) for each in values], width=width, label=title or None)
    for place, each in zip(places, values, strict=True):
        axes.plot([place] * len(each), each, "o", color="black", markersize=3)


def _finished(chart: Any, axes: Any, run: Run, label: str, names: list[str], path: Path) -> Path:
    axes.set(ylabel=label, title=f"{run.service.backend}, weights: {run.service.weights}")
    axes.set_xticks(range(len(names)), names)
    axes.set_ylim(bottom=0)
    if axes.get_legend_handles_labels()[1]:
        axes.legend()
    return saved(chart, path)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
