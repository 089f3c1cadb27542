"""Upstream: the connections to the replicas, with the cluster's secret on every request.

Four things can happen to a request before an answer, and the router must know which: it was never delivered
(`Unreachable`), the connection broke afterwards (`Lost`), nothing came for too long (`Silent`), or a status came.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from functools import lru_cache
from urllib.parse import urlsplit

from cosmos3_serve.reasoner.gateway.connection import Connection, Ended, Lost, Silent, Unreachable
from cosmos3_serve.reasoner.gateway.endpoint import CHAT
from cosmos3_serve.reasoner.gateway.parts import Payload
from cosmos3_serve.reasoner.gateway.replica_errors import Refusal, read_refusal
from cosmos3_serve.reasoner.setup import SECRET_HEADER
from cosmos3_serve.reasoner.tls import pinned

CHAT_PATH = CHAT.path
CONNECT_S = 5.0
KEEP_ALIVE_S = 15.0  # below the replica's own 60 s: a connection that it closes under a question looks like a death
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_REFUSAL_BYTES = 64 * 1024
SWEEP_S = 5.0
GONE_S = 2.0  # within which what a replica sent before it went has arrived
MAX_BIG_BODIES = 4  # sent at once, of those that are read from files or larger than what is joined

__all__ = ["CHAT_PATH", "MAX_ANSWER_BYTES", "Ended", "Lost", "Oversized", "Reply", "Silent", "Unreachable", "Upstream"]


class Oversized(Exception):
    """A whole answer that is too large to be held; the replica is well."""


class Reply:
    """An answer whose body has not been read yet. `close` ends it in every case; the replica notices at once."""

    def __init__(self, connection: Connection) -> None:
        self._connection: Connection | None = connection
        self.status = connection.status
        self._retry_after = connection.headers.get(b"retry-after")

    async def next(self) -> bytes:
        """What came next, as it came; empty at the end.

        Raises:
            Lost, Silent.
        """
        if self._connection is None:
            return b""
        piece = await self._connection.next()
        if not piece:
            self.close()
        return piece

    async def whole(self, limit: int = MAX_ANSWER_BYTES) -> bytes:
        """The rest of the body. Raises as `next`, and Oversized."""
        pieces: list[bytes] = []
        size = 0
        while piece := await self.next():
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise Oversized
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def refusal(self) -> Refusal:
        """The answer of a replica that said no. Raises as `next`."""
        try:
            body = await self.whole(MAX_REFUSAL_BYTES)
        except Oversized:
            body = b""
        retry_after = self._retry_after
        return read_refusal(self.status, body, retry_after.decode("latin-1") if retry_after else None)

    def close(self) -> None:
        connection, self._connection = self._connection, None  # from here on it may be another answer's
        if connection is not None:
            connection.end()


class Upstream:
    """
    Args:
        secret: of the cluster.
        answer_timeout_s: seconds without a byte, once the request was sent.
        tls: replicas speak TLS, and no other way is taken.
    """

    def __init__(self, secret: str, answer_timeout_s: float, *, tls: bool = False) -> None:
        self._secret, self._timeout_s = secret, answer_timeout_s
        self._tls = pinned(secret) if tls else None
        self._idle: dict[str, list[Connection]] = {}
        self._open: dict[Connection, str] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._big = asyncio.Semaphore(MAX_BIG_BODIES)

    async def start(self) -> None:
        """Called in the event loop that asks."""
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._open):
            connection.abandon()

    def keep_only(self, urls: Collection[str]) -> None:
        """Nobody is at any other address: whoever waits there learns within seconds that it is `Lost`. The replica of a
        lost machine closes nothing itself."""
        for connection in [c for c, url in self._open.items() if url not in urls]:
            connection.doubt(GONE_S)

    async def ask(
        self, url: str, payload: Payload, path: str = CHAT_PATH, sent: Callable[[], None] = lambda: None
    ) -> Reply:
        """Send a question to `path`; returns with the status. `sent` is called once all of it is on its way.

        Raises:
            Unreachable, Lost, Silent; StorageFailure where a file cannot be read.
        """
        _address(url)
        whole = payload.joined()
        head = b"%b%d\r\n\r\n" % (_post_head(url, path, self._secret), payload.size if whole is None else len(whole))
        if whole is not None:
            return await self._request(url, head, whole, sent)
        async with self._big:
            return await self._request(url, head, payload.slices(), sent)

    async def get(self, url: str, path: str, timeout_s: float, max_bytes: int = MAX_ANSWER_BYTES) -> tuple[int, bytes]:
        """A small answer of a replica: its health, its models, its figures. Raises as `ask`."""
        try:
            async with asyncio.timeout(timeout_s):
                _address(url)
                reply = await self._request(url, _get_head(url, path, self._secret))
                try:
                    return reply.status, await reply.whole(max_bytes)
                except Oversized:
                    raise Lost from None
                finally:
                    reply.close()
        except TimeoutError:
            raise Silent from None

    async def _request(
        self, url: str, head: bytes, body: bytes | AsyncIterator[bytes] = b"", sent: Callable[[], None] = lambda: None
    ) -> Reply:
        connection = self._take(url) or await self._connect(url)
        try:
            await connection.ask(head, body, sent)
        except BaseException:
            connection.abandon()
            raise
        return Reply(connection)

    # ---- connections ------------------------------------------------------------------------------------------------

    def _take(self, url: str) -> Connection | None:
        """The one used last, so that the others may end."""
        idle = self._idle.get(url)
        while idle:
            connection = idle.pop()
            if connection.usable and connection.idle_for() < KEEP_ALIVE_S:
                return connection
            connection.abandon()
        return None

    async def _connect(self, url: str) -> Connection:
        host, port = _address(url)
        if url.startswith("https:") != (self._tls is not None):
            raise Unreachable
        connection = Connection(self._timeout_s, self._free, self._gone)
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().create_connection(lambda: connection, host, port, ssl=self._tls)
        except (OSError, UnicodeError, TimeoutError):
            raise Unreachable from None
        self._open[connection] = url
        return connection

    def _free(self, connection: Connection) -> None:
        self._idle.setdefault(self._open[connection], []).append(connection)

    def _gone(self, connection: Connection) -> None:
        url = self._open.pop(connection, None)
        idle = self._idle.get(url or "")
        if url is not None and idle is not None:
            if connection in idle:
                idle.remove(connection)
            if not idle:
                del self._idle[url]

    def _sweep(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
        for connection in [c for idle in self._idle.values() for c in idle if c.idle_for() >= KEEP_ALIVE_S]:
            connection.abandon()


@lru_cache(maxsize=256)
def _address(url: str) -> tuple[str, int]:
    """Raises Unreachable: not an address."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.port or 80
    except ValueError:
        raise Unreachable from None


@lru_cache(maxsize=256)
def _post_head(url: str, path: str, secret: str) -> bytes:
    """Everything of a question's head up to the number of its length."""
    lines = (
        f"POST {path} HTTP/1.1",
        f"Host: {urlsplit(url).netloc}",
        f"{SECRET_HEADER}: {secret}",
        "Content-Type: application/json",
        "Content-Length: ",
    )
    return "\r\n".join(lines).encode()


def _get_head(url: str, path: str, secret: str) -> bytes:
    lines = (f"GET {path} HTTP/1.1", f"Host: {urlsplit(url).netloc}", f"{SECRET_HEADER}: {secret}", "", "")
    return "\r\n".join(lines).encode()
