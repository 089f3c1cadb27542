"""What a queue asks of whoever makes and does its parts: a generator's batches, or a reasoner's questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.queue.records import Kind, Limits, PartResult, PlannedPart
from cosmos3_serve.queue.sources import Start
from cosmos3_serve.queue.split import Group


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


class PartFormat(Protocol):
    """How items of the input become the body of a part.

    Attributes:
        key: the field that names an item; names are unique among the lines of an input.
    """

    kind: Kind
    key: str

    def item_bytes(self, item: dict[str, Any]) -> int:
        """What an item adds to the body."""

    def body(self, group: Group, start: Start, request_id: str) -> bytes:
        """The body of a part, checked. Blocking.

        Raises:
            InputError: `errors` names what is wrong by file and line.
        """


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

    async def limits(self, endpoints: Sequence[str]) -> Limits:
        """What one part may hold, with these services."""


class Work(Protocol):
    """Everything that differs between the kinds of queue, with its options.

    Attributes:
        timeout: seconds for one attempt at a part; None: derived.
    """

    @property
    def format(self) -> PartFormat: ...
    @property
    def token_env(self) -> str: ...
    @property
    def timeout(self) -> float | None: ...
    @property
    def journal_dir(self) -> Path | None: ...
    def endpoint(self, text: str, environ: Mapping[str, str]) -> str:
        """The address of a service; of the environment or the default where the text is empty."""

    def runner(self, notice: Callable[[str], None], environ: Mapping[str, str]) -> Runner: ...
    def kept(self) -> dict[str, Any]:
        """Options by the names of the command's settings, so that `queue resume` goes on as this worker began."""
