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


async def parse_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[Message]:
    """Messages of one stream; comments are skipped, an unfinished last message is dropped (it comes again on resume).

    Raises:
        ContractViolation: a line or a message is larger than 1 MiB.
    """
    held, event_id, data = bytearray(), "", list[str]()
    async for chunk in chunks:
        held += chunk
        *lines, rest = held.replace(b"\r\n", b"\n").split(b"\n")
        held = bytearray(rest)
        if len(held) + sum(map(len, data)) > MAX_LINE_BYTES or any(len(line) > MAX_LINE_BYTES for line in lines):
            raise ContractViolation(f"the event stream holds an event larger than {MAX_LINE_BYTES} bytes")
        for raw in lines:
            line = raw.decode("utf-8", "replace")
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if not line:
                if data:
                    yield Message(event_id, "\n".join(data))
                data = []
            elif field == "data":
                data.append(value)
            elif field == "id":
                event_id = value
