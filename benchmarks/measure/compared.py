"""The tables of two systems side by side: figures with their spread over repeats, ratios, and the capacity model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from statistics import fmean
from typing import Any

from measure.result import Section
from measure.side_by_side import PROFILES, REPLICAS, Outcome, Plan, described

from cosmos3_serve.bench.compare import FIGURES
from cosmos3_serve.bench.plan import Checked, costs_of, predict
from cosmos3_serve.bench.statistics import Level, levels, ratio_interval
from cosmos3_serve.errors import Cosmos3Error

ROWS: dict[str, Callable[[Level], float | None]] = {
    "questions per second": lambda row: row.requests_per_s,
    "output tokens per second": lambda row: row.output_tokens_per_s,
    "TTFT mean, ms": lambda row: row.ttft.mean_ms,
    "TTFT p50, ms": lambda row: row.ttft.p50_ms,
    "TTFT p95, ms": lambda row: row.ttft.p95_ms,
    "TTFT of first questions, mean, ms": lambda row: row.ttft_by_turn_ms[0],
    "TTFT of second questions, mean, ms": lambda row: row.ttft_by_turn_ms[1],
    "TTFT of last questions, mean, ms": lambda row: row.ttft_by_turn_ms[-1],
    "between tokens p50, ms": lambda row: row.itl.p50_ms if row.itl else None,
    "latency p50, ms": lambda row: row.latency.p50_ms,
    "latency p95, ms": lambda row: row.latency.p95_ms,
    "prompt tokens from the prefix cache, %": lambda row: None if row.cached_share is None else 100 * row.cached_share,
}
NOTE = (
    "{videos} synthetic clips of 30 s at 2 frames a second, {size}, H.264, sent as data URLs; {questions} questions "
    "each, {tokens} tokens an answer, {concurrency} conversations at a time; {repeats} repeats with fresh clips, the "
    "same ones for both systems; the four take turns and another one begins each repeat. Mean (least to most) over the "
    "repeats. Load: this package's own generator, on the same cores. {versions}. Both systems: two replicas on the "
    "CPU with the same settings of the engine, {threads}; the tiny checkpoint, **random weights**. Session "
    "affinity: one id a conversation in X-Dynamo-Session-ID, round robin: none. CPU: all processes of a system over a "
    "level, Ray and frontends included, divided by its questions; systems that are not asked stay up, and the cores "
    "they keep busy are {idle}."
)


def sections(outcome: Outcome, plan: Plan, versions: str, threads: str = "") -> list[Section]:
    """Tables of the valid runs. An invalid one is named with its findings and has no figure.

    Args:
        threads: of an engine, as its settings say; "": not known.
    """
    valid = {label: levels(run) for label, run in outcome.runs.items() if label not in outcome.invalid}
    cells: list[list[Any]] = [["", *valid]]
    for name, figure in ROWS.items():
        cells.append([name, *(_spread([figure(row) for row in rows]) for rows in valid.values())])
    count = plan.videos * plan.questions
    cpu = {label: [1000 * used / count for used in outcome.cpu[label]] for label in valid}
    cells.append(["CPU per question, ms", *(_spread(cpu[label]) for label in valid)])
    cells.append(["questions by replica", *(_by_replica(rows) for rows in valid.values())])
    idle = ", ".join(f"{label} {cores:.2f}" for label, cores in outcome.idle.items())
    note = NOTE.format(videos=plan.videos, questions=plan.questions, tokens=plan.tokens, size=outcome.size,
                       concurrency=plan.concurrency, repeats=plan.repeats, versions=versions, idle=idle,
                       threads=f"{threads} thread(s) each" if threads else "threads not told")  # fmt: skip
    for label, findings in outcome.invalid.items():
        note += f" **{label}: invalid, no figures** ({'; '.join(findings)})."
    figures = {"runs": {label: [row.model_dump(mode="json") for row in rows] for label, rows in valid.items()},
               "cpu_ms_per_question": cpu, **described(outcome)}  # fmt: skip
    found = [Section("Both systems, both profiles", note, cells, figures)]
    pairs = _pairs(list(valid))
    if pairs:
        found.append(_ratios(valid, pairs, plan.repeats))
    return [*found, *_model(outcome, plan, valid)]


def _pairs(labels: list[str]) -> list[tuple[str, str]]:
    """Affinity over round robin of each system, then one system over the other in each profile."""
    systems = list(dict.fromkeys(label.rpartition(", ")[0] for label in labels))
    wanted = [(f"{system}, {PROFILES[0]}", f"{system}, {PROFILES[1]}") for system in systems]
    if len(systems) == 2:
        wanted += [(f"{systems[1]}, {profile}", f"{systems[0]}, {profile}") for profile in PROFILES]
    return [(a, b) for a, b in wanted if a in labels and b in labels]


def _ratios(valid: dict[str, list[Level]], pairs: list[tuple[str, str]], repeats: int) -> Section:
    rows: list[list[Any]] = [["B over A", *FIGURES]]
    figures: dict[str, Any] = {}
    for a, b in pairs:
        row: list[Any] = [f"{b} over {a}"]
        for name, figure in FIGURES.items():
            both = [(figure(x), figure(y)) for x, y in zip(valid[a], valid[b], strict=True)]
            each = [y / x for x, y in both]
            interval = ratio_interval(both)
            figures.setdefault(row[0], {})[name] = {"each": each, "interval": interval}
            row.append(f"{fmean(each):.2f}" if interval is None else "{:.2f} ({:.2f} to {:.2f})".format(*interval))
        rows.append(row)
    sure = f"their 95 % interval by Student's t over {repeats} repeats" if repeats > 1 else "no interval: one repeat"
    return Section("Ratios", f"Within one repeat, geometric mean, and {sure}.", rows, figures)


def _model(outcome: Outcome, plan: Plan, valid: dict[str, list[Level]]) -> list[Section]:
    """What `cosmos3 bench plan` says of these levels out of lone questions, beside what was measured."""
    rows: list[list[Any]] = [
        ["system", "profile", "predicted q/s", "measured q/s", "error", "predicted TTFT mean, ms", "measured", "error"]
    ]
    figures: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for system, run in outcome.costs.items():
        if findings := outcome.invalid.get(f"costs of {system}"):
            left_out[system] = "; ".join(findings)
            continue
        try:
            costs = costs_of(run, workers=REPLICAS)
        except Cosmos3Error as error:  # its server does not tell cold from warm
            left_out[system] = error.detail
            continue
        figures[system] = {"costs": costs.model_dump(mode="json"), "checked": []}
        for profile in PROFILES:
            measured = valid.get(f"{system}, {profile}")
            if measured is None:
                continue
            said = predict(costs, workers=REPLICAS, questions=plan.questions, output_tokens=plan.tokens,
                           profile=profile, concurrency=plan.concurrency, videos=plan.videos)  # fmt: skip
            checked = Checked(
                profile, plan.concurrency, said.requests_per_s, fmean(row.requests_per_s for row in measured),
                1000 * said.ttft_mean_s, fmean(row.ttft.mean_ms for row in measured),
            )  # fmt: skip
            errors = {"error": checked.error, "ttft_error": checked.ttft_error}
            figures[system]["checked"].append(asdict(checked) | errors)
            rows.append(
                [system, profile, f"{checked.predicted:.2f}", f"{checked.measured:.2f}", f"{checked.error:+.0%}",
                 f"{checked.predicted_ttft_ms:.0f}", f"{checked.measured_ttft_ms:.0f}", f"{checked.ttft_error:+.0%}"]
            )  # fmt: skip
    note = (
        "Costs of a lone question (cold, warm, between tokens) from one conversation at a time on the same fleet "
        "before the repeats; the model knows workers, questions and conversations, and nothing of these levels. It "
        "takes workers for independent: here they share cores with each other and with the load."
    )
    for system, why in left_out.items():
        note += f" **{system} is left out**: {why}."
    figures |= {"left_out": left_out} if left_out else {}
    return [Section("The capacity model", note, rows, figures)] if len(rows) > 1 or left_out else []


def _spread(values: list[float | None] | list[float]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return "not told"
    digits = 0 if max(known) >= 100 else 1 if max(known) >= 20 else 2
    text = f"{fmean(known):.{digits}f}"
    return text if len(known) == 1 else f"{text} ({min(known):.{digits}f}–{max(known):.{digits}f})"


def _by_replica(rows: list[Level]) -> str:
    return "; ".join("/".join(map(str, row.requests_by_replica)) or "not told" for row in rows)
