"""Read a body as it comes, without the cost of a parser where the body is long."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Protocol, cast

import httpcore
import httpx

READ_BYTES = 256 * 1024  # what an asyncio transport takes from its socket at once
LONG_BYTES = 1024 * 1024


class Connection(Protocol):
    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes: ...


async def chunks(response: httpx.Response, *, read_s: float) -> AsyncIterator[bytes]:
    """The body's bytes as received.

    httpx passes every 64 KiB through its parser, which for a long body takes more time than all other work on it. So of
    a body whose length is declared, all that follows the first chunk is read from the connection itself, which is then
    closed instead of used again.

    Raises:
        httpx.TransportError: the connection was cut, or silent for `read_s` seconds.
    """
    left, connection = _declared(response), response.extensions.get("network_stream")
    parsed = cast(AsyncGenerator[bytes, None], response.aiter_raw())
    async with aclosing(parsed):  # its end closes the connection
        async for chunk in parsed:
            left -= len(chunk)
            yield chunk
            if left >= LONG_BYTES and connection is not None:
                break  # the parser holds nothing back: a chunk of a body of declared length is all that it had
        else:
            return
        while left > 0:
            chunk = await _read(connection, min(READ_BYTES, left), read_s)
            if not chunk:
                raise httpx.RemoteProtocolError("the connection was closed before the end of the body")
            left -= len(chunk)
            yield chunk


def _declared(response: httpx.Response) -> int:
    """Bytes of the body as Content-Length has them; 0 where something else tells its end."""
    if response.http_version not in ("HTTP/1.1", "HTTP/1.0") or "Transfer-Encoding" in response.headers:
        return 0
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isascii() and length.isdigit() else 0


async def _read(connection: Connection, size: int, read_s: float) -> bytes:
    try:
        return await connection.read(size, timeout=read_s)
    except httpcore.TimeoutException:
        raise httpx.ReadTimeout(f"no byte came within {read_s:g} s") from None
    except httpcore.NetworkError as error:
        raise httpx.ReadError(str(error)) from None
