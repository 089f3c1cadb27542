"""The one HTTP connection pool to a service: token, deadline, retries, bounded bodies, no redirects."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

import httpx

from cosmos3_serve.client import problem
from cosmos3_serve.client.body import PIECE_BYTES, Body
from cosmos3_serve.client.deadline import Deadline
from cosmos3_serve.errors import ContractViolation, Cosmos3Error, Unreachable
from cosmos3_serve.proxies import direct
from cosmos3_serve.retry import FIRST_CONTACT, Attempts, RetryPolicy, retry_after

CONNECT_S = 10.0
READ_S = 60.0
MIB = 1024 * 1024
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: status, headers, the body's bytes exactly as received.

    `resent` says that an earlier attempt of the same call may have been received, though no answer to it was.
    """

    status: int
    headers: httpx.Headers
    body: bytes
    resent: bool = False

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def failure(self) -> Cosmos3Error:
        return problem.failure(self.status, self.body, retry_after_s=retry_after(self.headers))


@dataclass
class Service:
    """Async context manager. All paths are absolute (`/v1/batches`).

    Every call raises:
        Incomplete: code `deadline_exceeded`.
        Unreachable: no answer within the retries.
        ContractViolation: the answer is larger than allowed or content-encoded.
    """

    endpoint: str
    token: str = field(repr=False)
    deadline: Deadline
    connections: int = 8
    transport: httpx.AsyncBaseTransport | None = None
    rng: random.Random = field(default_factory=random.Random)
    on_retry: Callable[[str], None] = lambda text: None

    async def __aenter__(self) -> Self:
        # Plain http needs no list of authorities, which takes longer to load than most calls; should TLS ever be
        # spoken after all, a context without authorities trusts nobody.
        https = self.endpoint.startswith("https:")
        self._tls = httpx.create_ssl_context() if https else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client = self._made(self.connections)
        self._lanes: list[httpx.AsyncClient] = []
        return self

    def _made(self, connections: int) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.endpoint,
            # identity: sizes and hashes are of the bytes on the wire, and no decompression bomb can reach us
            headers={"Authorization": f"Bearer {self.token}", "Accept-Encoding": "identity"},
            follow_redirects=False,
            verify=self._tls,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            transport=self.transport,
            mounts=direct(self.endpoint),
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in (self._client, *self._lanes):
            await client.aclose()

    async def call(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        retry: RetryPolicy = FIRST_CONTACT,
        read_s: float | None = READ_S,
        max_bytes: int = 16 * MIB,
    ) -> Answer:
        """One request, repeated by `retry`; any status comes back as an Answer."""
        attempts, sent, doing = Attempts(retry, self.rng.random), False, f"waiting for {method} {path}"
        while True:
            last: Answer | Unreachable
            try:
                async with asyncio.timeout(self.deadline.left()):
                    last = await self._whole(method, path, content, headers, read_s, max_bytes)
                if last.status not in retry.statuses:
                    return replace(last, resent=sent)
                wait, why = attempts.wait_s(retry_after(last.headers)), f"answered {last.status}"
                if wait is None:
                    return replace(last, resent=sent)
            except TimeoutError:
                raise self.deadline.exceeded(doing) from None
            except httpx.TransportError as error:
                last = self.unreachable(error)
                last.sent = sent = sent or last.sent  # of any attempt, not only the last
                wait, why = attempts.wait_s(), "did not answer"
                if wait is None or (last.sent and not retry.resend):
                    raise last from None
            await self.pause(wait, doing, why)

    async def pause(self, seconds: float, doing: str, why: str) -> None:
        """Wait before another try; a wait past the deadline is not begun.

        Raises:
            Incomplete: code `deadline_exceeded`.
        """
        if seconds >= self.deadline.left():
            raise self.deadline.exceeded(f"{doing} (the service {why})")
        if seconds > 1:
            self.on_retry(f"the service {why}; trying again in {seconds:.0f} s")
        await asyncio.sleep(seconds)

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        method: str = "GET",
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        read_s: float | None = READ_S,
        client: httpx.AsyncClient | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """One attempt; the body is read by the caller, who also handles httpx.TransportError."""
        timeout = httpx.Timeout(READ_S, connect=CONNECT_S, read=read_s, pool=None)
        if content is None or len(content) <= PIECE_BYTES or self.transport or not self.endpoint.startswith("http:"):
            client = client or self._client
            async with client.stream(method, path, content=content, headers=headers, timeout=timeout) as response:
                yield response
            return
        # On a connection of its own, so that its stream is known. TLS tells of its own records, not of an answer.
        body = Body(content)
        async with (
            self._made(1) as own,
            own.stream(
                method, path, content=body.pieces(), headers={**(headers or {}), "Content-Length": str(len(content))},
                timeout=timeout, extensions={"trace": body.trace},
            ) as response,
        ):  # fmt: skip
            yield response

    @asynccontextmanager
    async def lane(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client with a connection of its own, for `stream`: one of few, or a new one.

        A pool looks at each of its connections several times for each request, and costs more than the request where
        there are dozens.
        """
        if self.transport:
            yield self._client
            return
        client = self._lanes.pop() if self._lanes else self._made(1)
        try:
            yield client
        finally:
            self._lanes.append(client)

    def unreachable(self, error: httpx.TransportError) -> Unreachable:
        why = problem.printable(str(error)) or type(error).__name__
        return Unreachable(
            f"cannot reach the service at {self.endpoint}: {why}",
            sent=not isinstance(error, NOT_SENT),
            remedy="check the endpoint and that the service runs: cosmos3 ray-health --endpoint …",
        )

    async def _whole(
        self,
        method: str,
        path: str,
        content: bytes | None,
        headers: Mapping[str, str] | None,
        read_s: float | None,
        max_bytes: int,
    ) -> Answer:
        async with self.stream(path, method=method, content=content, headers=headers, read_s=read_s) as response:
            return Answer(response.status_code, response.headers, await read_all(response, max_bytes))


async def read_all(response: httpx.Response, max_bytes: int) -> bytes:
    """The body's bytes.

    Raises:
        ContractViolation: more than `max_bytes`, or content-encoded although we asked for identity.
    """
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ContractViolation("the service encoded an answer although identity was asked for")
    parts, size = [], 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > max_bytes:
            raise ContractViolation(f"the service's answer is larger than {max_bytes} bytes")
        parts.append(chunk)
    return b"".join(parts)
