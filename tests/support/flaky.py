"""A seeded HTTP fault proxy: the same seed meets the same requests with the same faults, however they interleave.

    plan = FaultPlan(seed=7, rate=0.3)
    with FlakyProxy("http://127.0.0.1:9000", plan) as proxy:
        ...  # talk to proxy.url; proxy.seen lists (method, target, nth, fault)

Whether the n-th request for one (method, path without query) is hurt, and how, depends only on seed, method, path and
n. `at_most` bounds the faults of one such pair, so that a client that insists always gets through. A test may also
script faults by hand: any callable `(method, target, nth) -> Fault | None` is a plan.

`answer(method, headers)` may answer in the server's place (`canned` makes such an answer); `strip` names a request
header that is not passed on.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Self
from urllib.parse import urlsplit


class Fault(StrEnum):
    ERROR_500 = "500"  # InternalError, nothing reached the server
    ERROR_503 = "503"  # plain 503 without an S3 body
    SLOW_DOWN = "slow_down"  # 503 with S3's SlowDown
    CONFLICT = "409"  # S3's passing ConditionalRequestConflict, nothing reached the server
    NOT_FOUND = "404"  # a store that does not show yet what it has
    DENIED = "403"
    REFUSE = "refuse"  # connection closed before the request was passed on
    LOST_REPLY = "lost_reply"  # passed on and carried out, then closed without a word
    CUT = "cut"  # answer closed in the middle of its body (lost_reply where it has none)
    DELAY = "delay"  # answered `delay_s` late
    STALL = "stall"  # head and half of the body sent, then silence for `stall_s`
    PRECONDITION = "412"  # nothing reached the server, and no such key need be there
    LAST_BYTE = "last_byte"  # reset before the last byte of the body (lost_reply where it has none)
    ERROR_200 = "200"  # success by its status, an error by its body; nothing reached the server
    SLOW = "slow"  # the body in small pieces, with pauses
    EXPIRED = "expired"  # credentials that were valid before
    SKEWED = "skewed"  # the clock of the caller is wrong
    ALTERED = "altered"  # passed on with another last byte of its body
    CARRIED_OUT = "carried_out"  # passed on and carried out; `carried_out()` is called before the answer goes back


Plan = Callable[[str, str, int], Fault | None]


@dataclass(frozen=True, slots=True)
class FaultPlan:
    seed: int
    rate: float = 0.3
    kinds: Sequence[Fault] = (
        Fault.ERROR_500, Fault.ERROR_503, Fault.SLOW_DOWN, Fault.REFUSE, Fault.LOST_REPLY, Fault.CUT, Fault.DELAY,
    )  # fmt: skip
    at_most: int = 3

    def __call__(self, method: str, target: str, nth: int) -> Fault | None:
        path = target.partition("?")[0]
        drawn = [self._draw(method, path, i) for i in range(nth + 1)]
        if drawn[-1] is None or sum(fault is not None for fault in drawn) > self.at_most:
            return None
        return drawn[-1]

    def _draw(self, method: str, path: str, nth: int) -> Fault | None:
        digest = hashlib.sha256(f"{self.seed} {method} {path} {nth}".encode()).digest()
        if int.from_bytes(digest[:4]) >= self.rate * 2**32:
            return None
        return self.kinds[int.from_bytes(digest[4:8]) % len(self.kinds)]


class FlakyProxy:
    """The proxy, on a thread of its own, on a free loopback port. One request per connection."""

    def __init__(
        self,
        upstream: str,
        plan: Plan = lambda method, target, nth: None,
        *,
        delay_s: float = 0.05,
        stall_s: float = 5.0,
        answer: Callable[[str, dict[str, str]], bytes | None] = lambda method, fields: None,
        strip: str = "",
        carried_out: Callable[[], None] = lambda: None,
    ) -> None:
        self._carried_out = carried_out
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._plan, self._delay_s, self._stall_s = plan, delay_s, stall_s
        self._answer_itself, self._strip = answer, strip.lower()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stopping: asyncio.Event
        self.url = ""
        self.seen: list[tuple[str, str, int, Fault | None]] = []

    @property
    def faults(self) -> int:
        return sum(fault is not None for *_, fault in self.seen)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the proxy did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=2**20)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stopping.wait()
        server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def hang_up(self) -> None:
        """Close every connection that is open, as the death of the server would."""

        def cut() -> None:
            for task in self._open:
                task.cancel()

        self._loop.call_soon_threadsafe(cut)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            # A cancelled handler ends quietly: asyncio would report it as a failed callback.
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._exchange(reader, writer)
        finally:
            self._open.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        fields = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
        at = (method, target.partition("?")[0])
        nth = self._counts[at]
        self._counts[at] += 1
        fault = self._plan(method, target, nth)
        self.seen.append((method, target, nth, fault))

        if fault is Fault.REFUSE:
            return
        if fields.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        length = int(fields.get("content-length", "0"))
        if fault in _ANSWERS:
            await _drain(reader, length)
            writer.write(
                _ANSWERS[fault] if method != "HEAD" else _ANSWERS[fault].partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
            )
            await writer.drain()
            return
        if (own := self._answer_itself(method, fields)) is not None:
            await _drain(reader, length)
            writer.write(own)
            await writer.drain()
            return
        if fault is Fault.DELAY:
            await asyncio.sleep(self._delay_s)

        up_reader, up_writer = await asyncio.open_connection(*self._upstream, limit=2**20)
        try:
            dropped = ("connection:", "expect:", *([f"{self._strip}:"] if self._strip else []))
            kept = [line for line in lines if line and not line.lower().startswith(dropped)]
            up_writer.write("\r\n".join([*kept, "Connection: close", "", ""]).encode("latin-1"))
            await _copy(reader, up_writer, length - 1 if fault is Fault.ALTERED else length)
            if fault is Fault.ALTERED and length:
                up_writer.write(bytes([(await reader.readexactly(1))[0] ^ 1]))
            await self._answer(up_reader, writer, fault)
        finally:
            up_writer.close()

    async def _answer(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, fault: Fault | None) -> None:
        head = await source.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        kept = [line for line in lines if line and not line.lower().startswith("connection:")]
        sizes = [int(line.partition(":")[2]) for line in kept if line.lower().startswith("content-length:")]
        if fault is Fault.CARRIED_OUT:
            self._carried_out()
        if fault is Fault.LOST_REPLY or (fault in (Fault.CUT, Fault.LAST_BYTE) and not (sizes and sizes[0] > 1)):
            await source.read()
            return
        sink.write("\r\n".join([*kept, "Connection: close", "", ""]).encode("latin-1"))
        if fault in (Fault.CUT, Fault.STALL) and sizes:
            await _copy(source, sink, sizes[0] // 2)
            if fault is Fault.STALL:
                await asyncio.sleep(self._stall_s)
            return
        if fault is Fault.LAST_BYTE:
            await _copy(source, sink, sizes[0] - 1)
            await asyncio.sleep(0.005)  # a reset overtakes bytes that are still on their way
            sink.transport.abort()
            return
        pause_s = self._delay_s / 8 if fault is Fault.SLOW else 0.0
        piece = 65536 if not pause_s else max(512, (sizes[0] if sizes else 0) // 8)
        while data := await source.read(piece):  # to the end: `Connection: close` upstream
            sink.write(data)
            await sink.drain()
            if pause_s:
                await asyncio.sleep(pause_s)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, length: int) -> None:
    while length > 0:
        data = await source.read(min(65536, length))
        if not data:
            raise ConnectionResetError
        sink.write(data)
        await sink.drain()
        length -= len(data)


async def _drain(source: asyncio.StreamReader, length: int) -> None:
    while length > 0 and (data := await source.read(min(65536, length))):
        length -= len(data)


def canned(status: str, body: str) -> bytes:
    data = body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(data)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + data


_ANSWERS = {
    Fault.ERROR_500: canned("500 Internal Server Error", "<Error><Code>InternalError</Code></Error>"),
    Fault.ERROR_503: canned("503 Service Unavailable", "overloaded"),
    Fault.CONFLICT: canned("409 Conflict", "<Error><Code>ConditionalRequestConflict</Code></Error>"),
    Fault.DENIED: canned("403 Forbidden", "<Error><Code>AccessDenied</Code></Error>"),
    Fault.NOT_FOUND: canned("404 Not Found", "<Error><Code>NoSuchKey</Code></Error>"),
    Fault.PRECONDITION: canned("412 Precondition Failed", "<Error><Code>PreconditionFailed</Code></Error>"),
    Fault.ERROR_200: canned("200 OK", "<Error><Code>InternalError</Code></Error>"),
    Fault.EXPIRED: canned("400 Bad Request", "<Error><Code>ExpiredToken</Code></Error>"),
    Fault.SKEWED: canned("403 Forbidden", "<Error><Code>RequestTimeTooSkewed</Code></Error>"),
    Fault.SLOW_DOWN: canned("503 Slow Down", "<Error><Code>SlowDown</Code></Error>"),
}
