"""How many requests one call of the model brings together, for arrivals of several kinds."""

from __future__ import annotations

import random
from typing import Any

from measure import load
from measure.result import Section, demand

from cosmos3_serve.generator.local import LocalGenerator

NOTE = (
    "Sizes from the service's two histograms: requests that one `@serve.batch` call brought together, and samples "
    "that went through the network together. Limit {limit}, window {window} s. Arrivals: one batch of 4 samples; "
    "32 clients at once with one sample each; {poisson} clients with one sample each at random (Poisson, fixed "
    "seed), about {rate:.1f} a second."
)


def coalescing(service: LocalGenerator, limit: int, window: float, arrivals: int, rate: float) -> Section:
    fields = {"num_frames": 1, "num_steps": 2}
    dice = random.Random(20261129)
    offsets = [0.0]
    while len(offsets) < arrivals:
        offsets.append(offsets[-1] + dice.expovariate(rate))
    rows: list[list[Any]] = [["arrivals", "coalesced batches", "inference batches", "mean coalesced"]]
    figures: dict[str, Any] = {}
    for name, starts in (("4 at once", None), ("32 at once", [0.0] * 32), ("Poisson", offsets)):
        with load.client(service) as http:
            before = load.Sizes(http)
            if starts is None:
                place = load.post(http, load.samples(4, **fields))
                load.wait(http, place)
                load.response(http, place, 4)
            else:
                load.burst(service, starts, **fields)
            after = load.Sizes(http)
        found = {kind: after.since(before, f"{kind}_batch_size") for kind in ("coalesced", "inference")}
        wanted = 4 if starts is None else len(starts)
        for kind, sizes in found.items():
            counted = sum(size * count for size, count in sizes.items())
            demand(counted == wanted, f"{name}: the {kind} batches hold {counted} samples, not {wanted}")
            demand(max(sizes) <= limit, f"{name}: a {kind} batch larger than the limit")
        mean = wanted / sum(found["coalesced"].values())
        rows.append([name, load.shown(found["coalesced"]), load.shown(found["inference"]), f"{mean:.2f}"])
        figures[name] = {**{kind: load.as_json(sizes) for kind, sizes in found.items()}, "mean": mean}
    note = NOTE.format(limit=limit, window=window, poisson=arrivals, rate=rate)
    return Section("Requests coalesced", note, rows, figures)
