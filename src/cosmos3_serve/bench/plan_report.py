"""What the capacity model says, in words and as data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cosmos3_serve.bench import reference as reference_table
from cosmos3_serve.bench import report
from cosmos3_serve.bench.plan import Checked, Costs, Prediction, against_reference, against_run, costs_of, predict
from cosmos3_serve.bench.records import Profile
from cosmos3_serve.errors import UsageError

PROFILES: tuple[Profile, ...] = ("round-robin", "session-affinity")


@dataclass(frozen=True, slots=True)
class Plan:
    """Predictions by profile, and how far the model was off where something is measured."""

    costs: Costs | None
    origin: str
    predicted: dict[Profile, list[Prediction]] = field(default_factory=dict)
    checked: list[Checked] = field(default_factory=list)
    published: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {
            "origin": self.origin,
            "costs": None if self.costs is None else self.costs.model_dump(mode="json"),
            "predicted": {profile: [asdict(row) for row in rows] for profile, rows in self.predicted.items()},
            "checked": [asdict(row) | {"error": row.error, "ttft_error": row.ttft_error} for row in self.checked],
            "published": {"origin": reference_table.ORIGIN, "rows": [asdict(row) for row in reference_table.ROWS]}
            if self.published
            else None,
        }

    def markdown(self) -> str:
        lines = []
        if self.published:
            lines += [
                f"Published for eight H200, round robin → session affinity ({reference_table.ORIGIN}):",
                "",
                *reference_table.table(),
                "",
            ]
        lines += [f"Costs: {self.origin}.", ""]
        if self.predicted:
            lines += [
                "Predicted, not measured:",
                "",
                "| profile | in flight | req/s | TTFT mean ms | TTFT warm ms | cold | bound by |",
                "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
            ]
            lines += [
                f"| {profile} | {row.concurrency} | {row.requests_per_s:.2f} | {row.ttft_mean_s * 1000:.0f}"
                f" | {row.ttft_warm_s * 1000:.0f} | {row.cold_share:.0%} | {row.bound_by} |"
                for profile, rows in self.predicted.items()
                for row in rows
            ]
            lines.append("")
        if self.checked:
            lines += [
                f"| profile | in flight | predicted req/s | measured | error | predicted TTFT {self.checked[0].ttft} ms"
                " | measured | error | made of its own |",
                "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
            ]
            lines += [_checked(row) for row in self.checked]
            lines += ["", "Rows with an entry in the last column are part of what the model was made of."]
        return "\n".join(lines).rstrip() + "\n"


def _checked(row: Checked) -> str:
    times = ["", "", ""]
    if row.ttft_error is not None:
        times = [f"{row.predicted_ttft_ms:.0f}", f"{row.measured_ttft_ms:.0f}", f"{row.ttft_error:+.0%}"]
    cells = [row.profile, row.concurrency, f"{row.predicted:.2f}", f"{row.measured:.2f}", f"{row.error:+.0%}", *times]
    return f"| {' | '.join(map(str, [*cells, row.calibrated]))} |"


def reference() -> Plan:
    """The model beside the published table of eight H200."""
    return Plan(
        None,
        "out of the published table of eight H200: its first row, and the last one's pace of decoding",
        checked=against_reference(),
        published=True,
    )


def from_costs(
    cold_ms: float, warm_ms: float, itl_ms: str, *, workers: int, questions: int, output_tokens: int,
    levels: tuple[int, ...], videos_held: int, videos: int | None = None,
) -> Plan:  # fmt: skip
    """
    Args:
        itl_ms: one number, or by questions in flight on a worker: `1:4.0,2:4.3`.

    Raises:
        UsageError: a cost that is not above 0, or another `itl_ms`.
    """
    try:
        costs = Costs(cold_s=cold_ms / 1000, warm_s=warm_ms / 1000, itl_s=paces(itl_ms), videos_held=videos_held)
    except ValidationError as error:
        raise UsageError(f"costs must be above 0: {error.errors()[0]['msg']}") from None
    return Plan(costs, "as given", _both(costs, workers, questions, output_tokens, levels, videos))


def paces(text: str) -> dict[int, float]:
    """Seconds between tokens by questions in flight, of `4.0` or `1:4.0,2:4.3` in milliseconds.

    Raises:
        UsageError: neither of them, or one number of questions twice.
    """
    found: dict[int, float] = {}
    try:
        for part in text.split(","):
            in_flight, colon, value = part.rpartition(":")
            key = int(in_flight) if colon else 1
            if key in found or not math.isfinite(float(value)):
                raise ValueError
            found[key] = float(value) / 1000
    except ValueError:
        raise UsageError(
            f"--itl-ms {text!r} is no pace of decoding", remedy="for example 4.0, or 1:4.0,2:4.3 by questions in flight"
        ) from None
    return found


def from_run(
    directory: Path, *, run_workers: int, workers: int, questions: int, output_tokens: int, levels: tuple[int, ...],
    videos_held: int, videos: int | None = None,
) -> Plan:  # fmt: skip
    run = report.read(directory)
    costs = costs_of(run, workers=run_workers, videos_held=videos_held)
    return Plan(
        costs,
        f"from a run of {run.started_at}, {run.server}, weights {run.weights}, {run_workers} replica(s)",
        _both(costs, workers, questions, output_tokens, levels, videos),
        against_run(run, costs, workers=run_workers),
    )


def _both(
    costs: Costs, workers: int, questions: int, output_tokens: int, levels: tuple[int, ...], videos: int | None
) -> dict[Profile, list[Prediction]]:
    return {
        profile: [
            predict(
                costs,
                workers=workers,
                questions=questions,
                output_tokens=output_tokens,
                profile=profile,
                concurrency=level,
                videos=videos,
            )
            for level in levels
        ]
        for profile in PROFILES
    }
