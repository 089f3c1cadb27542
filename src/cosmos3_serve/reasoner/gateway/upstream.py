"""Upstream: keep-alive HTTP to the replicas, with the cluster's secret on every request.

Four things can happen to a request before an answer, and the router must know which: it was never delivered
(`Unreachable`), the connection broke afterwards (`Lost`), nothing came for too long (`Silent`), or a status came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp

from cosmos3_serve.reasoner.gateway.parts import JSON_HEADERS, Payload
from cosmos3_serve.reasoner.gateway.replica_errors import Refusal, read_refusal
from cosmos3_serve.reasoner.setup import SECRET_HEADER

CHAT_PATH = "/v1/chat/completions"
CONNECT_S = 5.0
KEEP_ALIVE_S = 15.0  # below the replica's own 60 s: a connection that it closes under a question looks like a death
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_REFUSAL_BYTES = 64 * 1024
MAX_BIG_BODIES = 4  # sent at once, of those that are read from files or larger than what is joined
_NO_HEADERS = ("User-Agent", "Accept", "Accept-Encoding")


class Unreachable(Exception):
    """No connection: the replica never saw the request."""


class Lost(Exception):
    """The connection broke after the request was, or may have been, delivered."""


class Silent(Exception):
    """Delivered, and not a byte came for the time allowed."""


class Oversized(Exception):
    """A whole answer that is too large to be held; the replica is well."""


class Reply:
    """An answer whose body has not been read yet. `close` ends it in every case; the replica notices at once."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status

    async def next(self) -> bytes:
        """What came next, as it came; empty at the end.

        Raises:
            Lost, Silent.
        """
        try:
            return await self._response.content.readany()
        except (TimeoutError, aiohttp.ServerTimeoutError):
            raise Silent from None
        except (aiohttp.ClientError, OSError):
            raise Lost from None

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
        return read_refusal(self.status, body, self._response.headers.get("Retry-After"))

    def close(self) -> None:
        self._response.close()  # an answer that was read to its end has given its connection back already


class Upstream:
    """
    Args:
        secret: of the cluster.
        answer_timeout_s: seconds without a byte, once the request was sent.
    """

    def __init__(self, secret: str, answer_timeout_s: float) -> None:
        self._secret = secret
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=answer_timeout_s)
        self._session: aiohttp.ClientSession | None = None
        self._big = asyncio.Semaphore(MAX_BIG_BODIES)

    async def start(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S, use_dns_cache=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={SECRET_HEADER: self._secret},
            skip_auto_headers=_NO_HEADERS,
            timeout=self._timeout,
            auto_decompress=False,
            trust_env=False,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, url: str, payload: Payload) -> Reply:
        """Send a question; returns with the status.

        Raises:
            Unreachable, Lost, Silent; StorageFailure where a file cannot be read.
        """
        whole = payload.joined()
        if whole is not None:
            return await self._request("POST", url + CHAT_PATH, whole, JSON_HEADERS)
        headers = {**JSON_HEADERS, "content-length": str(payload.size)}
        async with self._big:
            return await self._request("POST", url + CHAT_PATH, payload.slices(), headers)

    async def get(self, url: str, path: str, timeout_s: float, max_bytes: int = MAX_ANSWER_BYTES) -> tuple[int, bytes]:
        """A small answer of a replica: its health, its models, its figures. Raises as `ask`."""
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self._request("GET", url + path, None, {})
                try:
                    return reply.status, await reply.whole(max_bytes)
                except Oversized:
                    raise Lost from None
                finally:
                    reply.close()
        except TimeoutError:
            raise Silent from None

    async def _request(self, method: str, url: str, data: object, headers: Mapping[str, str]) -> Reply:
        assert self._session is not None
        try:
            response = await self._session.request(
                method, url, data=data, headers=headers, allow_redirects=False, expect100=False
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL):
            raise Unreachable from None
        except (TimeoutError, aiohttp.ServerTimeoutError):
            raise Silent from None
        except (aiohttp.ClientError, OSError):
            raise Lost from None
        return Reply(response)
