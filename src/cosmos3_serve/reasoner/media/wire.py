"""One GET over a connection pinned to a checked address: no proxy, no cookie, no redirect, no decoding, no reuse.

The name is resolved here, every answer is judged, and the socket connects to an address that passed; TLS and the Host
header still carry the name. A second look at DNS, which could answer differently, never happens.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import httpcore

from cosmos3_serve.media.refusal import bad
from cosmos3_serve.reasoner.media.address import Target, check_address

Resolver = Callable[[str, int], Awaitable[list[str]]]
MAX_ADDRESSES = 8


@dataclass(slots=True)
class Reply:
    """An answer whose body is still to come; header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


class _Pinned(httpcore.AsyncNetworkBackend):
    """Connects to the given addresses, whatever host it is asked for."""

    def __init__(self, addresses: list[str], port: int) -> None:
        self._addresses, self._port = addresses, port
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        failure: Exception = httpcore.ConnectError("no address")
        for address in self._addresses:
            try:
                return await self._inner.connect_tcp(address, self._port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def addresses_of(target: Target, resolver: Resolver) -> list[str]:
    """The addresses of a target, each of them checked: one forbidden answer among good ones is a trick, not a choice.

    Raises:
        Refused: 400 `media_url_refused`, or `media_fetch_failed` where the name has none.
    """
    try:
        found = [str(ip_address(target.host))]
    except ValueError:
        try:
            found = await resolver(target.host, target.port)
        except (OSError, UnicodeError):
            found = []
    if not found:
        raise bad("media_fetch_failed", f"the host of {target.shown} is not known")
    for text in found:
        check_address(ip_address(text.partition("%")[0]), target)
    return found[:MAX_ADDRESSES]


@asynccontextmanager
async def get(
    target: Target,
    headers: Mapping[str, str],
    addresses: list[str],
    *,
    tls: ssl.SSLContext,
    connect_timeout_s: float,
) -> AsyncIterator[Reply]:
    """Ask once, one of `addresses_of` the target. The caller bounds the whole time and the bytes.

    Raises:
        Refused: `media_fetch_failed` where the connection fails or breaks.
    """
    sent = [("Host", target.authority), ("Accept", "*/*"), ("Accept-Encoding", "identity"), ("Connection", "close")]
    sent += [("User-Agent", "cosmos3-serve"), *headers.items()]
    timeout = {"connect": connect_timeout_s, "read": connect_timeout_s * 3, "write": connect_timeout_s}
    try:
        async with (
            httpcore.AsyncConnectionPool(
                ssl_context=tls,
                max_connections=1,
                max_keepalive_connections=0,
                network_backend=_Pinned(addresses, target.port),
            ) as pool,
            pool.stream("GET", target.url, headers=sent, extensions={"timeout": timeout}) as response,
        ):
            names = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in response.headers}
            yield Reply(response.status, names, response.aiter_stream())
    except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
        raise bad("media_fetch_failed", f"fetching {target.shown} failed: {_words(error)}") from None


def _words(error: Exception) -> str:
    if isinstance(error, httpcore.TimeoutException):
        return "no answer in time"
    text = str(error)
    if "CERTIFICATE" in text.upper():
        return "its TLS certificate is not valid for it"
    return "connection refused or unreachable" if isinstance(error, httpcore.ConnectError) else "the connection broke"
