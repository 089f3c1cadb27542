"""Figures of one cell. Seconds in, milliseconds out where a name ends in `_ms`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from cosmos3_serve.bench.generator.records import Run, Sample
from cosmos3_serve.bench.statistics import Spread


class Row(BaseModel):
    """
    Args:
        samples_per_s, frames_per_s: over the wall time from the first request's due time to the last one's end.
        latency: of a sample, from when its request was due until its request ended.
        coalesced, inference: size of a batch -> how many there were; None where the service does not tell.
        mixed_batches: inference batches that mixed sizes or frame counts.
        shown: share of the judged samples that show the scene that they were asked for; None: none was judged.
        phases: name -> its seconds over the samples; empty where the service does not tell.
    """

    model_config = ConfigDict(frozen=True)

    repeat: int
    arrivals: str
    mix: str
    samples: int
    wall_s: float
    samples_per_s: float
    frames_per_s: float
    latency: Spread
    latest_ms: float
    coalesced: dict[int, int] | None
    inference: dict[int, int] | None
    mixed_batches: int | None
    shown: float | None = None
    phases: dict[str, Spread]

    @property
    def mean_coalesced(self) -> float | None:
        return _mean(self.coalesced)

    @property
    def mean_inference(self) -> float | None:
        return _mean(self.inference)


def rows(run: Run) -> list[Row]:
    """One a cell, in the order in which they ran. The run must be valid: nothing is left out here."""
    return [_row([s for s in run.samples if s.key == key]) for key in dict.fromkeys(s.key for s in run.samples)]


def _row(samples: Sequence[Sample]) -> Row:
    wall = max(s.ended for s in samples) - min(s.due for s in samples)
    told = all(s.inference_id for s in samples)
    judged = [s.shown for s in samples if s.shown is not None]
    names = dict.fromkeys(name for s in samples for name in s.timings)
    return Row(
        repeat=samples[0].repeat,
        arrivals=samples[0].arrivals,
        mix=samples[0].mix,
        samples=len(samples),
        wall_s=wall,
        samples_per_s=len(samples) / wall,
        frames_per_s=sum(s.asked["num_frames"] for s in samples) / wall,
        latency=Spread.of([s.latency for s in samples]),
        latest_ms=1000 * max(s.started - s.due for s in samples),
        coalesced=_sizes([(s.coalesced_id, s.coalesced) for s in samples]) if told else None,
        inference=_sizes([(s.inference_id, s.inference) for s in samples]) if told else None,
        mixed_batches=len({s.inference_id for s in samples if s.mixed_shapes}) if told else None,
        shown=sum(judged) / len(judged) if judged else None,
        phases={name: Spread.of([s.timings[name] for s in samples if name in s.timings]) for name in names},
    )


def _sizes(batches: Sequence[tuple[str | None, int | None]]) -> dict[int, int]:
    return dict(sorted(Counter(size or 0 for size in dict(batches).values()).items()))


def _mean(sizes: dict[int, int] | None) -> float | None:
    return None if not sizes else sum(size * count for size, count in sizes.items()) / sum(sizes.values())
