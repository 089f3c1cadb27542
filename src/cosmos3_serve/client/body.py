"""A large request body that stops being sent as soon as the server answers: a refusal comes while we still send, and a
server that then closes would take it away again with the bytes that nobody read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpcore

PIECE_BYTES = 64 * 1024


class Body:
    """One body, sent once over a connection that is opened for it."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._stream: Any = None

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        """httpcore's trace extension: it tells of the connection when it is made."""
        if event == "connection.connect_tcp.complete":
            self._stream = info["return_value"]

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body in pieces, up to the server's answer: after a failed write httpcore reads what the server said."""
        for start in range(0, len(self._content), PIECE_BYTES):
            if start and self._stream is not None and self._stream.get_extra_info("is_readable"):
                raise httpcore.WriteError("the server answered before it had the whole body")
            yield self._content[start : start + PIECE_BYTES]
