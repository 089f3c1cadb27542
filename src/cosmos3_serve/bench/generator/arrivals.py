"""Arrivals: when requests come. Open kinds keep their own time whatever the service does, a closed one waits for it."""

from __future__ import annotations

import random
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal["burst", "steady", "poisson", "closed"]
MAX_IN_FLIGHT = 256


class Arrivals(BaseModel):
    """
    Args:
        kind: burst: all at once; steady: one every 1/`value` seconds; poisson: at random, `value` a second on average;
            closed: `value` clients, each with its next request as soon as the last one ended.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    value: float = Field(default=0.0, ge=0, le=1000, allow_inf_nan=False)

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if self.kind == "burst" and self.value:
            raise ValueError("a burst has no rate")
        if self.kind in ("steady", "poisson") and not self.value:
            raise ValueError(f"{self.kind} wants requests a second, for example {self.kind}:4")
        if self.kind == "closed" and not (self.value.is_integer() and 1 <= self.value <= MAX_IN_FLIGHT):
            raise ValueError(f"closed wants 1 to {MAX_IN_FLIGHT} clients, for example closed:8")
        return self

    @classmethod
    def parse(cls, text: str) -> Self:
        """`burst`, `steady:RATE`, `poisson:RATE` or `closed:CLIENTS`.

        Raises:
            ValueError: anything else.
        """
        kind, _, value = text.strip().partition(":")
        return cls.model_validate({"kind": kind, "value": float(value)} if value else {"kind": kind})

    @property
    def label(self) -> str:
        return self.kind if self.kind == "burst" else f"{self.kind}:{self.value:g}"

    @property
    def clients(self) -> int:
        """How many there are of a closed kind."""
        return int(self.value)

    def offsets(self, count: int, seed: int) -> list[float]:
        """Seconds from the beginning at which each of `count` requests is due; of the open kinds. The first is at 0."""
        if self.kind == "burst":
            return [0.0] * count
        if self.kind == "steady":
            return [number / self.value for number in range(count)]
        dice, due = random.Random(seed), [0.0]
        while len(due) < count:
            due.append(due[-1] + dice.expovariate(self.value))
        return due
