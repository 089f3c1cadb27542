"""Server-sent events, parsed with bounded memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from pydantic import ValidationError

from cosmos3_serve.contract.views import BatchEvent
from cosmos3_serve.errors import ContractViolation

MAX_LINE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Message:
    """One event as sent: its id ("" when it has none) and its data."""

    id: str
    data: str

    def batch_event(self) -> BatchEvent:
        """Raises ContractViolation when the data is no batch event."""
        try:
            return BatchEvent.model_validate_json(self.data)
        except ValidationError as error:
            raise ContractViolation(f"the event stream holds an invalid event: {error.error_count()} fields") from None


async def split_lines(chunks: AsyncIterator[bytes], max_bytes: int = MAX_LINE_BYTES) -> AsyncIterator[bytes]:
    r"""The lines of a stream without their `\n` or `\r\n`, an unfinished last one included.

    Text's own line splitting also ends lines at U+2028, U+0085 and others, which JSON may hold unescaped.

    Raises:
        ContractViolation: a line is larger than `max_bytes`.
    """
    held: list[bytes] = []
    size = 0
    async for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            line = b"".join((*held, piece)).removesuffix(b"\r")
            held, size = [], 0
            if len(line) > max_bytes:
                raise _too_large(max_bytes)
            yield line
        held.append(rest)
        size += len(rest)
        if size > max_bytes:
            raise _too_large(max_bytes)
    if size:
        yield b"".join(held)


def _too_large(max_bytes: int) -> ContractViolation:
    return ContractViolation(f"the event stream holds an event larger than {max_bytes} bytes")


async def parse_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[Message]:
    """Messages of one stream; comments are skipped, an unfinished last message is dropped (it comes again on resume).

    Raises:
        ContractViolation: a line or a message is larger than 1 MiB.
    """
    event_id, data, size = "", list[str](), 0
    async for raw in split_lines(chunks):
        line = raw.decode("utf-8", "replace")
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield Message(event_id, "\n".join(data))
            data, size = [], 0
        elif field == "data":
            data.append(value)
            size += len(value) + 1  # with the line's end: empty lines are not free either
            if size > MAX_LINE_BYTES:
                raise _too_large(MAX_LINE_BYTES)
        elif field == "id":
            event_id = value
