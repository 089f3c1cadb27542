"""Connection: keep-alive HTTP/1.1 to one replica, with a parser in C and nothing between it and the socket.

A general client costs a gateway more CPU per question than everything else it does together, and a task and two
buffers for each token of a stream. Replicas are ours: no cookies, redirects, proxies, compression or TLS.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import cast

import httptools

HELD_BYTES = 256 * 1024  # of an answer that its reader has not taken yet; past it the socket is not read
HEADER_BYTES = 64 * 1024


class Unreachable(Exception):
    """No connection: the replica never saw the request."""


class Lost(Exception):
    """The connection broke after the request was, or may have been, delivered."""


class Ended(Lost):
    """The engine gave the answer up because it ends; no request is to blame."""


class Silent(Exception):
    """Delivered, and not a byte came for the time allowed."""


class Connection(asyncio.Protocol):
    """One socket; one request at a time.

    Args:
        silence_s: seconds without a byte while somebody waits for one.
        on_free: called when the answer was read to its end and another request may follow.
        on_gone: called when the socket is of no use any more.
    """

    def __init__(
        self, silence_s: float, on_free: Callable[[Connection], None], on_gone: Callable[[Connection], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._silence_s, self._on_free, self._on_gone = silence_s, on_free, on_gone
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None  # somebody waits to write
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._pieces: list[bytes] = []
        self._held = 0
        self._paused = self._full = False
        self._failure: type[Exception] | None = None
        self._silence: type[Exception] = Silent
        self.idle_since = 0.0
        self._begin()
        self._idle = True

    def _begin(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._interim = self._complete = self._keep_alive = False
        self._cut = True  # the request is not wholly on its way
        self._idle = False

    @property
    def usable(self) -> bool:
        """Whether a request can be sent."""
        return self._failure is None and self._transport is not None and not self._transport.is_closing()

    # ---- the socket's side ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        if self._idle:
            self._fail(Lost)  # nobody has asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail(Lost)
        if self._held > HELD_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        # An answer without a length ends where the connection does.
        unbounded = self.status and b"content-length" not in self.headers and b"transfer-encoding" not in self.headers
        if unbounded and exc is None and not self._idle:
            self._complete = True
        self._fail(Lost)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        _wake(self._room)

    # ---- the parser's side ------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            raise ValueError("an answer that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > HEADER_BYTES:
            raise ValueError("the replica's headers are too large")
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._interim = status < 200
        if self._interim:
            self.headers = {}
        else:
            self.status = status
            self._keep_alive = self._parser.should_keep_alive()
            _wake(self._waiter)
            _wake(self._room)

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self._held += len(body)
        _wake(self._waiter)

    def on_message_complete(self) -> None:
        if self._interim:
            return
        self._complete = True
        _wake(self._waiter)

    # ---- the request's side -----------------------------------------------------------------------------------------

    async def ask(
        self, head: bytes, body: bytes | AsyncIterator[bytes] = b"", sent: Callable[[], None] = lambda: None
    ) -> int:
        """Send a request; the status of its answer. `sent` is called once all of it is on its way.

        Raises:
            Lost, Silent; whatever `body` raises.
        """
        if self._transport is None or not self.usable:
            raise Lost
        self._begin()
        self._heard_at = self._loop.time()
        if isinstance(body, bytes):
            # Small ones in one system call; big ones are not copied.
            if len(body) <= HELD_BYTES:
                self._transport.write(head + body)
            else:
                self._transport.writelines((head, body))
            self._cut = False
        else:
            self._transport.write(head)
            async for piece in body:
                if self.status or self._failure is not None:
                    break  # it has said no already
                self._transport.write(piece)
                if self._full:
                    await self._wait_for_room()
            else:
                self._cut = False
        self._heard_at = self._loop.time()
        del body
        sent()
        while not self.status:
            await self._wait()
        return self.status

    async def next(self) -> bytes:
        """What came next, as it came; empty at the end.

        Raises:
            Lost, Silent.
        """
        while not self._pieces:
            if self._complete:
                return b""
            await self._wait()
        piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._held = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._heard_at = self._loop.time()
            if not self._transport.is_closing():
                self._transport.resume_reading()
        return piece

    def end(self) -> None:
        """The answer is over for its reader: the connection serves another request if the answer came whole, else it
        ends, and the replica notices. Not to be touched afterwards."""
        self._pieces.clear()
        self._held = 0
        if self._complete and self._keep_alive and not (self._cut or self._full or self._paused) and self.usable:
            self._idle = True
            self.idle_since = self._loop.time()
            self._on_free(self)
        else:
            self._fail(Lost)

    def abandon(self) -> None:
        """Nobody wants anything of it any more."""
        self._fail(Lost)

    def doubt(self, silence_s: float) -> None:
        """The other end is said to be gone. What has arrived is read all the same, of an answer that was whole or of a
        replica that ended in order; whoever waits so long for more learns that it is `Lost`."""
        if self._idle:
            self.abandon()
        elif self._silence is not Lost and self._failure is None:
            self._silence, self._silence_s = Lost, min(silence_s, self._silence_s)
            self._heard_at = self._loop.time()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = self._loop.call_later(self._silence_s, self._look)

    def idle_for(self) -> float:
        """Seconds since its last answer ended."""
        return self._loop.time() - self.idle_since

    # ---- in between -------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._timer is None:
            self._timer = self._loop.call_later(self._silence_s, self._look)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._failure is not None and not (self._complete or self._pieces):
            raise self._failure

    async def _wait_for_room(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._silence_s, self._look)
        self._heard_at = self._loop.time()
        self._room = self._loop.create_future()
        try:
            await self._room
        finally:
            self._room = None

    def _look(self) -> None:
        """One timer for the connection's life: moving it with every token would cost more than the token."""
        waited = self._loop.time() - self._heard_at
        waiting = self._waiter is not None or self._room is not None
        if waiting and waited >= self._silence_s:
            self._timer = None
            self._fail(self._silence)
            return
        left = self._silence_s - waited if waiting else self._silence_s
        self._timer = self._loop.call_later(max(left, 0.001), self._look)

    def _fail(self, why: type[Exception]) -> None:
        if self._failure is None:
            self._failure = why
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._transport is not None:
                self._transport.abort()
            self._on_gone(self)
        _wake(self._waiter)
        _wake(self._room)


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
