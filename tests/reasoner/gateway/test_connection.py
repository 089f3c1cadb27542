"""The HTTP client towards replicas, against servers that answer byte by byte as told: nothing is mixed up or kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from cosmos3_serve.reasoner.gateway import connection, upstream
from cosmos3_serve.reasoner.gateway.parts import Payload
from cosmos3_serve.reasoner.gateway.upstream import Lost, Oversized, Silent, Unreachable, Upstream

Turn = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Replica:
    """Answers each request with the next turn; counts connections."""

    def __init__(self, *turns: Turn) -> None:
        self.turns = list(turns)
        self.connections = 0
        self.requests: list[bytes] = []
        self.gone = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.turns:
                head = await reader.readuntil(b"\r\n\r\n")
                size = next(
                    (int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.lower()[:15] == b"content-length:"), 0
                )
                turn = self.turns.pop(0)
                if not getattr(turn, "early", False):
                    self.requests.append(head + await reader.readexactly(size))
                await turn(reader, writer)
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.gone.set()
            writer.close()


def says(data: bytes, *, early: bool = False) -> Turn:
    async def turn(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    turn.early = early  # type: ignore[attr-defined]
    return turn


def then_ends(data: bytes) -> Turn:
    async def turn(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        writer.close()

    return turn


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@asynccontextmanager
async def asking(*turns: Turn, timeout_s: float = 5.0) -> AsyncIterator[tuple[Upstream, str, Replica]]:
    replica = Replica(*turns)
    server = await asyncio.start_server(replica.serve, "127.0.0.1", 0)
    found = Upstream("the-secret", timeout_s)
    await found.start()
    try:
        yield found, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", replica
    finally:
        await found.close()
        server.close()


async def whole(up: Upstream, url: str, body: bytes = b"{}") -> bytes:
    reply = await up.ask(url, Payload((body,)))
    try:
        return await reply.whole()
    finally:
        reply.close()


async def test_one_connection_serves_one_question_after_another() -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    async with asking(says(OK), says(chunked), says(interim + OK), says(OK)) as (up, url, replica):
        assert [await whole(up, url) for _ in range(4)] == [b"ok", b"abcde", b"ok", b"ok"]
        assert replica.connections == 1
        head, _, body = replica.requests[0].partition(b"\r\n\r\n")
        assert body == b"{}" and b"x-cosmos3-cluster-secret: the-secret" in head
        assert b"POST /v1/chat/completions HTTP/1.1" in head


async def test_questions_at_once_have_a_connection_each() -> None:
    async with asking(*[says(OK)] * 6) as (up, url, replica):
        assert await asyncio.gather(*[whole(up, url) for _ in range(5)]) == [b"ok"] * 5
        assert replica.connections == 5


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n\r\nok",
    ],
    ids=["close", "1.0", "no length"],
)
async def test_an_answer_that_ends_its_connection_is_whole_and_the_last(answer: bytes) -> None:
    async with asking(then_ends(answer), then_ends(answer)) as (up, url, replica):
        assert [await whole(up, url), await whole(up, url)] == [b"ok", b"ok"]
        assert replica.connections == 2


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nab",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",
    ],
    ids=["nothing", "half a status", "short", "half a chunk", "no chunk", "no HTTP", "endless headers"],
)
async def test_what_breaks_off_is_lost_and_never_taken_for_an_answer(broken: bytes) -> None:
    async with asking(then_ends(broken)) as (up, url, _):
        with pytest.raises(Lost):
            await whole(up, url)


async def test_nobody_there_is_no_delivery() -> None:
    up = Upstream("s", 1.0)
    await up.start()
    async with asking() as (_, url, _replica):
        pass
    for address in (url, "http://127.0.0.1:99999", "http://[bad"):
        with pytest.raises(Unreachable):
            await whole(up, address)
    await up.close()


async def test_silence_is_told_apart_from_death_and_from_slowness() -> None:
    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n")
        for _ in range(8):
            await asyncio.sleep(0.1)
            writer.write(b"x")

    async with asking(hangs, slow, hangs, timeout_s=0.4) as (up, url, replica):
        with pytest.raises(Silent):
            await whole(up, url)
        assert await whole(up, url) == b"x" * 8  # longer than the silence allowed, but never silent
        await asyncio.sleep(0.6)  # an idle connection may be as silent as it likes
        with pytest.raises(Silent):
            await whole(up, url)
        await asyncio.wait_for(replica.gone.wait(), 5)


async def test_an_answer_that_nobody_wants_any_more_ends_its_connection() -> None:
    begun = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc"
    async with asking(says(begun), says(OK)) as (up, url, replica):
        reply = await up.ask(url, Payload((b"{}",)))
        assert await reply.next() == b"abc"
        reply.close()
        reply.close()
        await asyncio.wait_for(replica.gone.wait(), 5)
        assert await whole(up, url) == b"ok"
        assert replica.connections == 2
        assert await reply.next() == b"", "a closed answer must not read another one's"


async def test_a_question_whose_client_left_is_given_up() -> None:
    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with asking(hangs) as (up, url, replica):
        task = asyncio.create_task(whole(up, url))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait_for(replica.gone.wait(), 5)
        assert not up._open and not up._idle


async def test_bytes_that_nobody_asked_for_end_a_connection() -> None:
    async with asking(says(OK + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"), says(OK)) as (up, url, _):
        assert await whole(up, url) == b"ok"
        await asyncio.sleep(0.05)
        assert await whole(up, url) == b"ok"


async def test_a_refusal_while_a_big_body_is_sent_is_heard_and_its_connection_not_used_again() -> None:
    said = b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\nretry-after: 7\r\n\r\nbig"
    async with asking(says(said, early=True), says(OK)) as (up, url, replica):
        reply = await up.ask(url, Payload((b"x" * 30_000_000,)))
        assert reply.status == 413
        refusal = await reply.refusal()
        assert (refusal.status, refusal.retry_after_s) == (413, 7.0)
        reply.close()
        assert await whole(up, url) == b"ok"
        assert replica.connections == 2


async def test_a_reader_that_is_slow_holds_the_replica_back() -> None:
    size = 20_000_000
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size
    async with asking(says(head + b"x" * size), timeout_s=0.5) as (up, url, _):
        reply = await up.ask(url, Payload((b"{}",)))
        await asyncio.sleep(0.8)
        held = reply._connection._held  # type: ignore[union-attr]
        assert 0 < held < connection.HELD_BYTES + 4 * 2**20
        seen = 0
        while piece := await reply.next():
            seen += len(piece)
        assert seen == size
        with pytest.raises(Oversized):
            async with asking(says(head + b"x" * size)) as (other, there, _):
                await (await other.ask(there, Payload((b"{}",)))).whole(1000)


async def test_idle_connections_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "KEEP_ALIVE_S", 0.1)
    monkeypatch.setattr(upstream, "SWEEP_S", 0.05)
    async with asking(says(OK), says(OK), says(OK)) as (up, url, replica):
        assert await whole(up, url) == b"ok"
        assert len(up._open) == 1
        await asyncio.wait_for(replica.gone.wait(), 5)
        assert not up._open and not up._idle


async def test_at_an_address_that_nobody_has_any_more_what_arrived_is_read_and_nothing_else_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream, "GONE_S", 0.3)
    size = 3 * connection.HELD_BYTES
    big = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size
    begun = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with asking(then_ends(big), says(begun), silent, timeout_s=300) as (up, url, replica):
        slow = await up.ask(url, Payload((b"{}",)))  # its client takes nothing for a while
        half = await up.ask(url, Payload((b"{}",)))
        assert await half.next() == b"half"
        quiet = asyncio.create_task(up.ask(url, Payload((b"{}",))))
        while replica.connections < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        views = asyncio.create_task(follow(up))
        async with asyncio.timeout(20):
            with pytest.raises(Lost):
                await half.next()
            with pytest.raises(Lost):
                await quiet
        views.cancel()
        assert await slow.whole() == b"x" * size


async def follow(up: Upstream) -> None:
    """As with every view of a fleet that has lost the replica."""
    while True:
        up.keep_only({"http://elsewhere:1"})
        await asyncio.sleep(0.1)


async def test_idle_connections_to_an_address_that_nobody_has_any_more_end() -> None:
    async with asking(says(OK), says(OK)) as (up, url, replica):
        assert await whole(up, url) == b"ok"
        up.keep_only({url})
        assert await whole(up, url) == b"ok" and replica.connections == 1
        up.keep_only(set())
        async with asyncio.timeout(10):
            await replica.gone.wait()
