"""What the capacity model says, in words and as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

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

    def as_dict(self) -> dict[str, Any]:
        return {
            "origin": self.origin,
            "costs": None if self.costs is None else self.costs.model_dump(mode="json"),
            "predicted": {profile: [asdict(row) for row in rows] for profile, rows in self.predicted.items()},
            "checked": [asdict(row) | {"error": row.error} for row in self.checked],
        }

    def markdown(self) -> str:
        lines = [f"Costs: {self.origin}.", ""]
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
                "| profile | in flight | predicted req/s | measured | error |",
                "| --- | ---: | ---: | ---: | ---: |",
            ]
            lines += [
                f"| {row.profile} | {row.concurrency} | {row.predicted:.2f} | {row.measured:.2f} | {row.error:+.0%} |"
                for row in self.checked
            ]
        return "\n".join(lines).rstrip() + "\n"


def reference() -> Plan:
    """The model beside the published table of eight H200."""
    return Plan(
        None,
        "out of the published table of eight H200: its first row, and the last one's pace of decoding",
        checked=against_reference(),
    )


def from_costs(
    cold_ms: float, warm_ms: float, itl_ms: float, *, workers: int, questions: int, output_tokens: int,
    levels: tuple[int, ...], videos_held: int,
) -> Plan:  # fmt: skip
    try:
        costs = Costs(cold_s=cold_ms / 1000, warm_s=warm_ms / 1000, itl_s={1: itl_ms / 1000}, videos_held=videos_held)
    except ValidationError as error:
        raise UsageError(f"costs must be above 0: {error.errors()[0]['msg']}") from None
    return Plan(costs, "as given", _both(costs, workers, questions, output_tokens, levels))


def from_run(
    directory: Path, *, run_workers: int, workers: int, questions: int, output_tokens: int, levels: tuple[int, ...],
    videos_held: int,
) -> Plan:  # fmt: skip
    run = report.read(directory)
    costs = costs_of(run, workers=run_workers, videos_held=videos_held)
    return Plan(
        costs,
        f"from a run of {run.started_at}, {run.server}, weights {run.weights}, {run_workers} replica(s)",
        _both(costs, workers, questions, output_tokens, levels),
        against_run(run, costs, workers=run_workers),
    )


def _both(
    costs: Costs, workers: int, questions: int, output_tokens: int, levels: tuple[int, ...]
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
            )
            for level in levels
        ]
        for profile in PROFILES
    }
