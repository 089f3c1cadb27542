"""PNG plots of one run or of several of the same work, and one HTML page that needs nothing beside itself."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cosmos3_serve.bench import compare
from cosmos3_serve.bench.compare import Gain
from cosmos3_serve.bench.records import Run
from cosmos3_serve.bench.report import COLUMNS, UNCHECKED, flat, weights
from cosmos3_serve.bench.statistics import Level, levels
from cosmos3_serve.errors import UsageError

PLOTS: dict[str, tuple[str, Callable[[Level], float]]] = {
    "throughput": ("requests per second", lambda row: row.requests_per_s),
    "ttft-p50": ("time to first token, p50, ms", lambda row: row.ttft.p50_ms),
    "ttft-p95": ("time to first token, p95, ms", lambda row: row.ttft.p95_ms),
    "latency-p50": ("request latency, p50, ms", lambda row: row.latency.p50_ms),
}
HTML = "report.html"


def draw(runs: Sequence[Run], directory: Path) -> list[Path]:
    """One PNG a figure, a line a run, a dot a repeat; and TTFT by question. Every run must be valid (`report.read`).

    Raises:
        UsageError: matplotlib is not installed.
    """
    pyplot = drawing()
    made = []
    for name, (label, figure) in PLOTS.items():
        chart, axes = pyplot.subplots(figsize=(6, 4), dpi=120)
        for run in runs:
            rows = levels(run)
            xs = [row.concurrency for row in rows]
            line = axes.plot(run.workload.concurrency, _means(rows, run, figure), label=_title(run))[0]
            axes.plot(xs, [figure(row) for row in rows], "o", color=line.get_color(), alpha=0.6)
        axes.set(xlabel="requests in flight", ylabel=label, title=_labels(runs))
        axes.set_ylim(bottom=0)
        axes.legend()
        made.append(saved(chart, directory / f"{name}.png"))
        pyplot.close(chart)
    chart, axes = pyplot.subplots(figsize=(6, 4), dpi=120)
    for run in runs:
        row = levels(run)[0]
        axes.plot(range(1, len(row.ttft_by_turn_ms) + 1), row.ttft_by_turn_ms, "o-", label=_title(run))
    axes.set(xlabel=f"question (concurrency {runs[0].workload.concurrency[0]})", ylabel="time to first token, mean, ms")
    axes.set_title(_labels(runs))
    axes.set_ylim(bottom=0)
    axes.legend()
    made.append(saved(chart, directory / "ttft-by-question.png"))
    pyplot.close(chart)
    return made


def drawing() -> Any:
    """matplotlib's pyplot, drawing into files.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        remedy = "pip install '.[bench]' in a checkout of cosmos3-serve"
        raise UsageError("plots need matplotlib", remedy=remedy) from None
    return pyplot


def page(runs: Sequence[Run], plots: Sequence[Path], directory: Path, before: Sequence[str] = ()) -> Path:
    """Tables and pictures in one file without a link to anything. `before`: HTML that stands above them."""
    parts = [*before]
    for run in runs:
        work = run.workload
        parts.append(f"<h1>{text(run.model)}, {text(work.profile)}</h1>")
        parts.append(
            f"<p>{text(run.started_at)}, server {text(run.server)}, <strong>weights: {text(weights(run))}</strong>,"
            f" load: {text(run.load)}. {work.videos} videos of {run.recipe.seconds} s, {work.questions} questions"
            f" each, {work.output_tokens} tokens an answer.</p>"
        )
        parts.append(f"<p>{text(', '.join(f'{name} {value}' for name, value in run.machine.items()))}</p>")
        if not run.temperature_checked:
            parts.append(f"<p><strong>{text(UNCHECKED)}</strong></p>")
        parts.append(table(COLUMNS, [list(flat(row).values()) for row in levels(run)]))
    return document(parts, plots, directory)


def compared(a: Run, b: Run, gains: Sequence[Gain], directory: Path) -> Path:
    """Plots of both runs, and the page with their ratios and intervals above the tables of each."""
    before = [f"<h1>{text(compare.title(a, b))}</h1>"]
    before += [f"<p>{text(line)}</p>" for line in (compare.described("A", a), compare.described("B", b))]
    before += [f"<p>{text(note)}</p>" for note in compare.notes(a, b)]
    before.append(table(compare.HEADS, [compare.cells(gain) for gain in gains]))
    return page([a, b], draw([a, b], directory), directory, before)


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """An HTML table; every cell is escaped."""
    lines = ["<table><tr>" + "".join(f"<th>{text(head)}</th>" for head in heads) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{cell(value)}</td>" for value in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])


def document(parts: Sequence[str], plots: Sequence[Path], directory: Path) -> Path:
    """The page of these parts (HTML) and these pictures, which are put into it."""
    lines = [_HEAD, *parts]
    for path in plots:
        data = base64.b64encode(path.read_bytes()).decode()
        lines.append(f"<img alt='{text(path.stem)}' src='data:image/png;base64,{data}'>")
    target = directory / HTML
    target.write_text("\n".join([*lines, "</html>"]) + "\n", encoding="utf-8")
    return target


_HEAD = (
    "<!doctype html><html lang='en'><meta charset='utf-8'><title>cosmos3 bench</title><style>"
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem;max-width:80rem}table{border-collapse:collapse;display:block;"
    "overflow-x:auto}td,th{border:1px solid #ccc;padding:.2rem .6rem;text-align:right}th{background:#f3f3f3}"
    "img{max-width:38rem;margin:.5rem}</style>"
)


def _means(rows: Sequence[Level], run: Run, figure: Callable[[Level], float]) -> list[float]:
    by_level = [[figure(row) for row in rows if row.concurrency == level] for level in run.workload.concurrency]
    return [sum(values) / len(values) for values in by_level]


def _title(run: Run) -> str:
    return f"{run.server}, {run.workload.profile}"


def _labels(runs: Sequence[Run]) -> str:
    return f"weights: {', '.join(sorted({run.weights for run in runs}))}"


def saved(chart: object, path: Path) -> Path:
    """Write a chart as PNG."""
    data = io.BytesIO()
    # Without the time of drawing the same run gives the same file.
    chart.savefig(data, format="png", bbox_inches="tight", metadata={"Software": None})  # type: ignore[attr-defined]
    path.write_bytes(data.getvalue())
    return path


def text(value: object) -> str:
    """Escaped for HTML."""
    return html.escape(str(value))


def cell(value: object) -> str:
    """A figure of a table, short; None is empty."""
    return text(f"{value:.4g}" if isinstance(value, float) else "" if value is None else value)
