"""What a queue asks of whoever does its parts: the generator's batches today, anything that ends in a publication."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.queue.records import PartResult, PlannedPart


@dataclass(frozen=True, slots=True)
class Task:
    """One attempt at a part.

    Attributes:
        input_path: where its batch is.
        output_path: where its publication goes.
        endpoint: the service to send it to.
        known: whether an earlier attempt, of anybody, may have left something.
        partial: publish what succeeded instead of trying failed samples again.
    """

    part: PlannedPart
    input_path: str
    output_path: str
    endpoint: str
    known: bool
    partial: bool


class Runner(Protocol):
    """Does parts. Cancelling a call leaves something that the next call continues."""

    async def run(self, task: Task, done: Callable[[int], None]) -> PartResult:
        """Bring a part to its publication; the result without `manifest_sha256`.

        Args:
            done: told how many samples ended, whenever that changes.

        Raises:
            Cosmos3Error: see `attempts.meaning_of`.
        """

    async def give_up(self, task: Task, error: Cosmos3Error) -> PartResult:
        """The result of a part of which nothing will be published."""

    async def cancel(self, task: Task) -> None:
        """End the work on a part at its service, as far as that can be done."""

    async def check(self, endpoint: str) -> bool:
        """Whether a service answers at all."""
