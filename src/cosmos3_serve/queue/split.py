"""Samples into parts that a service accepts: consecutive, as full as the limits allow, the same for the same input."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cosmos3_serve.errors import LimitExceeded
from cosmos3_serve.queue.records import Limits

ENVELOPE_BYTES = 1024  # the body around the samples: model, request id, brackets
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Sourced:
    """A sample and where it was read: file and line, or file and position."""

    sample: dict[str, Any]
    where: str


@dataclass(slots=True)
class Group:
    """Consecutive samples of one part."""

    samples: list[Sourced] = field(default_factory=list)
    bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.samples)


class Splitter:
    """Takes samples one by one and gives back the groups that are full.

    Args:
        size: bytes that a sample adds to the body.
    """

    def __init__(self, limits: Limits, size: Callable[[dict[str, Any]], int]) -> None:
        self._size = size
        self._samples, self._bytes = limits.max_samples, limits.max_body_bytes - ENVELOPE_BYTES
        self._limit = limits.max_body_bytes
        self._group = Group()

    def add(self, item: Sourced) -> Iterator[Group]:
        """
        Raises:
            LimitExceeded: code `sample_too_large`: it would not fit into any body.
        """
        size = self._size(item.sample)
        if size > self._bytes:
            raise LimitExceeded(
                f"{item.where}: the sample makes a body of {size} bytes, the service takes {self._limit}",
                remedy="shorten it, or raise the service's --max-body-bytes",
                code="sample_too_large",
            )
        if len(self._group.samples) == self._samples or self._group.bytes + size > self._bytes:
            yield from self.rest()
        self._group.samples.append(item)
        self._group.bytes += size

    def rest(self) -> Iterator[Group]:
        if self._group:
            yield self._group
            self._group = Group()


def part_name(number: int, stem: str = "") -> str:
    """`00001`, or `00001-stem` with what is unsafe in the stem replaced."""
    safe = _UNSAFE.sub("-", stem).strip("-.")[:60]
    return f"{number:05}-{safe}" if safe else f"{number:05}"
