"""Figures of one level: counts, rates, percentiles. Seconds in, milliseconds out where a name ends in `_ms`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from pydantic import BaseModel, ConfigDict

from cosmos3_serve.bench.records import Request, Run

# Two-sided 95 % quantiles of Student's t by degrees of freedom; beyond the table see `t95`.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_Z95 = 1.959964
# What a session of our server may be; `none` is no session.
SESSION_STATES = ("new", "hit", "moved", "spilled")


class Spread(BaseModel):
    model_config = ConfigDict(frozen=True)

    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        ordered = sorted(value * 1000 for value in seconds)
        return cls(
            mean_ms=fmean(ordered),
            p50_ms=percentile(ordered, 50),
            p95_ms=percentile(ordered, 95),
            p99_ms=percentile(ordered, 99),
        )


class Level(BaseModel):
    """One row: a repeat at one concurrency.

    Args:
        requests_per_s: over the wall time from the first start to the last end.
        ttft_by_turn_ms: mean of each question in its order; the first one of a video carries the cold cost.
        cached_share: prompt tokens that the server says came from its cache; None where it does not say.
        media_misses: requests whose video the replica did not hold; None where the server does not say.
        requests_by_replica: in the order of first use, by number and not by name.
        sessions: requests by what the server says of their session (new, hit, moved, spilled); empty if nothing.
        right: share of right answers, of clips that are scenes; None: of others.
        warm_start: caches may have held the videos, since a level before it used them.
    """

    model_config = ConfigDict(frozen=True)

    repeat: int
    concurrency: int
    requests: int
    wall_s: float
    requests_per_s: float
    output_tokens_per_s: float
    ttft: Spread
    latency: Spread
    itl: Spread | None
    ttft_by_turn_ms: list[float]
    cached_share: float | None
    media_misses: int | None
    requests_by_replica: list[int]
    sessions: dict[str, int] = {}
    right: float | None = None
    warm_start: bool


def levels(run: Run) -> list[Level]:
    """The rows of a run, in the order in which they ran. The run must be valid: nothing is left out here."""
    keys = list(dict.fromkeys((request.repeat, request.concurrency) for request in run.requests))
    first = keys[0]
    return [
        _level([r for r in run.requests if (r.repeat, r.concurrency) == key], not run.workload.fresh and key != first)
        for key in keys
    ]


def _level(requests: Sequence[Request], warm_start: bool) -> Level:
    wall = max(r.ended for r in requests) - min(r.started for r in requests)
    tokens = sum(r.output_tokens or 0 for r in requests)
    turns = max(r.turn for r in requests) + 1
    gaps = [r.itl for r in requests if r.itl is not None]
    told = [r for r in requests if r.cached_tokens is not None and r.prompt_tokens]
    media = [r.media_state for r in requests if r.media_state is not None]
    states = Counter(r.session_state for r in requests)
    judged = [r.right for r in requests if r.right is not None]
    return Level(
        repeat=requests[0].repeat,
        concurrency=requests[0].concurrency,
        requests=len(requests),
        wall_s=wall,
        requests_per_s=len(requests) / wall,
        output_tokens_per_s=tokens / wall,
        ttft=Spread.of([r.ttft for r in requests]),
        latency=Spread.of([r.latency for r in requests]),
        itl=Spread.of(gaps) if gaps else None,
        ttft_by_turn_ms=[fmean([r.ttft * 1000 for r in requests if r.turn == turn]) for turn in range(turns)],
        cached_share=sum(r.cached_tokens or 0 for r in told) / sum(r.prompt_tokens or 0 for r in told)
        if len(told) == len(requests)
        else None,
        media_misses=media.count("miss") if len(media) == len(requests) else None,
        requests_by_replica=list(Counter(r.replica for r in requests if r.replica is not None).values()),
        sessions={name: states[name] for name in SESSION_STATES} if any(states[s] for s in SESSION_STATES) else {},
        right=sum(judged) / len(judged) if judged else None,
        warm_start=warm_start,
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Linear between the two neighbours, as numpy's default. `ordered` ascends and is not empty."""
    place = (len(ordered) - 1) * share / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def ratio_interval(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float] | None:
    """Geometric mean of b/a over pairs (a, b), with its 95 % interval by Student's t on the logarithms.

    Where the pairs were not measured side by side but are repeats of two separate runs in their order, the interval
    holds their scatter, and nothing of what changed on the machine between the runs.

    None with fewer than two pairs: one run says nothing about how far the next would be off.
    """
    if len(pairs) < 2:
        return None
    logs = [math.log(b / a) for a, b in pairs]
    mean = fmean(logs)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in logs) / (len(logs) - 1))
    half = t95(len(logs) - 1) * deviation / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def t95(degrees: int) -> float:
    """Two-sided 95 % quantile of Student's t, to three decimals.

    Beyond 15 degrees of freedom by the expansion around the normal quantile (Abramowitz and Stegun, 26.7.5).
    """
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    z = _Z95
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3
