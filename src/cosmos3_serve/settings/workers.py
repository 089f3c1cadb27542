"""WorkerRange: how many replicas a fleet has: a number, or a range within which it follows the load."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator

MOST = 1024
_TEXT = re.compile(r"\s*([0-9]{1,6})\s*(?::\s*([0-9]{1,6})\s*)?")


@dataclass(frozen=True, slots=True)
class WorkerRange:
    """
    Args:
        least, most: replicas; equal where the number is fixed. `least` may be 0 in a range: an idle fleet sleeps.
    """

    least: int
    most: int

    @property
    def scales(self) -> bool:
        return self.least != self.most

    def plain(self) -> int | str:
        """As an operator writes it: `4`, or `"2:8"`."""
        return f"{self.least}:{self.most}" if self.scales else self.most

    def __str__(self) -> str:
        return str(self.plain())


def parse_workers(value: Any) -> WorkerRange:
    """
    Raises:
        ValueError: neither a number from 1 to 1024 nor a range such as 2:8.
    """
    if isinstance(value, WorkerRange):
        return value
    found = _TEXT.fullmatch(str(value)) if isinstance(value, int | str) and not isinstance(value, bool) else None
    if found is None:
        raise ValueError("must be a number such as 4, or a range such as 2:8")
    least = int(found[1])
    most = least if found[2] is None else int(found[2])
    if not 1 <= most <= MOST:
        raise ValueError(f"must be 1 to {MOST}; a fleet that sleeps while nobody asks has a range such as 0:4")
    if least > most:
        raise ValueError(f"the range {least}:{most} begins above its end; write {most}:{least}")
    return WorkerRange(least, most)


Workers = Annotated[
    WorkerRange, PlainValidator(parse_workers), PlainSerializer(WorkerRange.plain, return_type=int | str)
]
