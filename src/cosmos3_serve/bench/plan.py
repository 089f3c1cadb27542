"""A capacity model: what N workers give, from what one question costs cold and warm.

One worker is a closed queue with as many questions in flight as it is given. The way to the first token (fetch,
decode, processor, prefill) is a station that serves one question at a time: its demand is the cold or the warm time to
the first token of a lone question. Decoding is a delay, since a batch of decoding questions slows each of them little;
how little is `itl_s`, measured. The exact mean-value analysis of that network gives rate and waiting. It knows nothing
of a load that is uneven for a moment: where workers are busy it is an upper bound (`against_reference` says how far).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from cosmos3_serve.bench.records import Profile, Run
from cosmos3_serve.bench.reference import OUTPUT_TOKENS, QUESTIONS, ROWS, VIDEOS, WORKERS
from cosmos3_serve.errors import InputError


class Costs(BaseModel):
    """What one question costs one worker, in seconds.

    Args:
        cold_s, warm_s: to the first token, alone, of a video that the worker does not and does hold.
        itl_s: between tokens, by questions in flight on the worker; between two of them it is interpolated, past the
            last one it stays.
        videos_held: how many the worker's caches hold.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cold_s: float = Field(gt=0)
    warm_s: float = Field(gt=0)
    itl_s: Mapping[int, float]
    videos_held: int = Field(default=1_000_000, ge=1)

    @field_validator("itl_s")
    @classmethod
    def _some(cls, value: Mapping[int, float]) -> Mapping[int, float]:
        if not value or min(value) < 1 or min(value.values()) <= 0:
            raise ValueError("give seconds between tokens for one question in flight or more")
        return value

    def itl(self, in_flight: float) -> float:
        known = sorted(self.itl_s)
        if in_flight <= known[0]:
            return self.itl_s[known[0]]
        for low, high in pairwise(known):
            if in_flight <= high:
                share = (in_flight - low) / (high - low)
                return self.itl_s[low] + share * (self.itl_s[high] - self.itl_s[low])
        return self.itl_s[known[-1]]


@dataclass(frozen=True, slots=True)
class Prediction:
    """
    Args:
        cold_share: of all questions.
        bound_by: what would have to get cheaper: the way to the first token, decoding, or more questions in flight.
    """

    concurrency: int
    requests_per_s: float
    ttft_mean_s: float
    ttft_warm_s: float
    cold_share: float
    busy: float
    bound_by: Literal["first token", "decode", "load"]


def predict(
    costs: Costs,
    *,
    workers: int,
    questions: int,
    output_tokens: int,
    profile: Profile,
    concurrency: int,
    videos: int | None = None,
) -> Prediction:
    """A fleet with `concurrency` questions in flight, spread evenly over `workers`.

    Args:
        videos: asked about in all, each with one question at a time: no more questions than videos are in flight. None:
            more than are asked about at a time. That the last ones are asked about by few is not in the model.
    """
    if min(workers, questions, output_tokens, concurrency, videos or 1) < 1 or videos == 0:
        raise InputError("workers, questions, output tokens, concurrency and videos are at least 1")
    cold = cold_share(costs, workers=workers, questions=questions, profile=profile, concurrency=concurrency,
                      videos=videos)  # fmt: skip
    demand = cold * costs.cold_s + (1 - cold) * costs.warm_s
    in_flight = _in_flight(concurrency, videos)
    each = in_flight / workers
    if each <= 1:
        # Some workers idle: whoever works, works alone.
        cycle = demand + (output_tokens - 1) * costs.itl(1)
        rate, waited, busy = in_flight / cycle, demand, each * demand / cycle
    else:
        delay = (output_tokens - 1) * costs.itl(each)
        rate, waited, busy = _closed(demand, delay, each)
        rate *= workers
    warm = max(costs.warm_s, waited - demand + costs.warm_s)
    decoding = (output_tokens - 1) * costs.itl(max(1.0, each))
    bound: Literal["first token", "decode", "load"] = (
        "first token" if busy > 0.8 else "load" if each < 1 else "decode" if decoding > waited else "first token"
    )
    return Prediction(concurrency, rate, waited, warm, cold, busy, bound)


def _in_flight(concurrency: int, videos: int | None) -> int:
    return concurrency if videos is None else min(concurrency, videos)


def cold_share(
    costs: Costs, *, workers: int, questions: int, profile: Profile, concurrency: int, videos: int | None = None
) -> float:
    """The share of questions whose worker does not hold the video.

    Affinity: the first of each video. Round robin: the first on each worker that a video's questions come to; one
    session alone goes round in order, several together come to a worker as if drawn by lot. Where more videos are asked
    about at a time than a worker holds, the least recently used goes just before it is needed: every question is cold.
    """
    in_flight = _in_flight(concurrency, videos)
    live = math.ceil(in_flight / workers) if profile == "session-affinity" else in_flight
    if live > costs.videos_held:
        return 1.0
    if profile == "session-affinity":
        return 1 / questions
    if in_flight == 1:
        return min(workers, questions) / questions
    return workers * (1 - (1 - 1 / workers) ** questions) / questions


def _closed(demand: float, delay: float, in_flight: float) -> tuple[float, float, float]:
    """Rate, seconds at the station, utilisation; for a number of customers that may lie between two whole ones."""
    length, rows = 0.0, [(0.0, demand, 0.0)]
    for customers in range(1, math.ceil(in_flight) + 1):
        waited = demand * (1 + length)
        rate = customers / (waited + delay)
        length = rate * waited
        rows.append((rate, waited, rate * demand))
    low, high = rows[math.floor(in_flight)], rows[math.ceil(in_flight)]
    share = in_flight - math.floor(in_flight)
    mixed = [a + share * (b - a) for a, b in zip(low, high, strict=True)]
    return mixed[0], mixed[1], mixed[2]


def costs_of(run: Run, *, workers: int, videos_held: int = 1_000_000) -> Costs:
    """What a run measured: cold and warm times from its lowest level, the pace of decoding from every level.

    Raises:
        InputError: it has no level with at most one question in flight a worker, or nothing tells cold from warm.
    """
    lowest = min(run.workload.concurrency)
    if lowest > workers:
        raise InputError(
            f"the lowest level has {lowest} questions in flight on {workers} workers: a lone one is needed"
        )
    alone = [r for r in run.requests if r.concurrency == lowest]
    cold = [r.ttft for r in alone if r.is_warm is False]
    warm = [r.ttft for r in alone if r.is_warm is True]
    if not cold or not warm:
        raise InputError(
            "the run's lowest level has no cold or no warm question by the server's count of cached tokens"
        )
    paces: dict[int, list[float]] = {}
    for request in run.requests:
        if request.itl is not None:
            paces.setdefault(max(1, round(request.concurrency / workers)), []).append(request.itl)
    if not paces:
        raise InputError("answers of one token tell no pace of decoding")
    return Costs(
        cold_s=fmean(cold),
        warm_s=fmean(warm),
        itl_s={each: fmean(values) for each, values in paces.items()},
        videos_held=videos_held,
    )


@dataclass(frozen=True, slots=True)
class Checked:
    """A prediction beside what was measured. An error is predicted over measured, less one.

    Args:
        ttft: which time to first token both are: the mean, or the p50 (as predicted: of a warm question).
        calibrated: which of the row's own figures the model was made of, so that its error says less; "" where none.
    """

    profile: Profile
    concurrency: int
    predicted: float
    measured: float
    predicted_ttft_ms: float | None = None
    measured_ttft_ms: float | None = None
    ttft: Literal["mean", "p50"] = "mean"
    calibrated: Literal["", "costs and pace", "pace"] = ""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def ttft_error(self) -> float | None:
        if self.predicted_ttft_ms is None or self.measured_ttft_ms is None:
            return None
        return self.predicted_ttft_ms / self.measured_ttft_ms - 1


def against_reference() -> list[Checked]:
    """NVIDIA's table for eight workers, from costs taken out of its first and last rows alone.

    The two rates at concurrency 1 give the warm and the cold time (1 of 20 questions is cold with affinity, 8 of 20
    with round robin), its TTFT the split of the warm one; the last row's latency (409 ms) and TTFT (62 ms) give the
    pace of decoding with two questions in flight. Every other row is a prediction.
    """
    affinity, robin = 1 / ROWS[0].affinity, 1 / ROWS[0].round_robin
    extra = (robin - affinity) / (8 / 20 - 1 / 20)
    warm_s = ROWS[0].affinity_ttft_p50_ms / 1000
    decoding = affinity - warm_s - extra / 20
    last = ROWS[-1]
    assert last.affinity_latency_p50_ms is not None
    paced_s = (last.affinity_latency_p50_ms - last.affinity_ttft_p50_ms) / 1000
    costs = Costs(
        cold_s=warm_s + extra,
        warm_s=warm_s,
        itl_s={1: decoding / (OUTPUT_TOKENS - 1), 2: paced_s / (OUTPUT_TOKENS - 1)},
    )
    found = []
    profiles: Sequence[Profile] = ("round-robin", "session-affinity")
    for row in ROWS[1:]:
        for profile in profiles:
            said = predict(
                costs,
                workers=WORKERS,
                questions=QUESTIONS,
                output_tokens=OUTPUT_TOKENS,
                profile=profile,
                concurrency=row.concurrency,
                videos=VIDEOS,
            )
            robins = profile == "round-robin"
            measured = row.round_robin if robins else row.affinity
            ttft_ms = row.round_robin_ttft_p50_ms if robins else row.affinity_ttft_p50_ms
            # More than half of the questions are warm in both profiles: the p50 is a warm one's.
            own: Literal["", "pace"] = "pace" if row is ROWS[-1] and not robins else ""
            found.append(Checked(profile, row.concurrency, said.requests_per_s, measured, 1000 * said.ttft_warm_s,
                                 ttft_ms, "p50", own))  # fmt: skip
    return found


def against_run(run: Run, costs: Costs, *, workers: int) -> list[Checked]:
    """Every level of a run beside its prediction.

    The costs come from the lowest level and the pace of decoding from each: no level is free of its own figures, and
    `calibrated` says which.
    """
    from cosmos3_serve.bench.statistics import levels

    work = run.workload
    found = []
    for row in levels(run):
        said = predict(
            costs,
            workers=workers,
            questions=work.questions,
            output_tokens=work.output_tokens,
            profile=work.profile,
            concurrency=row.concurrency,
            videos=work.videos,
        )
        own: Literal["costs and pace", "pace"] = (
            "costs and pace" if row.concurrency == min(work.concurrency) else "pace"
        )
        found.append(Checked(work.profile, row.concurrency, said.requests_per_s, row.requests_per_s,
                             1000 * said.ttft_mean_s, row.ttft.mean_ms, "mean", own))  # fmt: skip
    return found
