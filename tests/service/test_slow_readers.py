"""A client that does not read its answer is cut, and holds up nobody."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import Receive, Scope, Send

from cosmos3_serve.service import http_server
from cosmos3_serve.service.http_server import ON_LEAVE, HttpServer

PIECE = b"x" * 65536


class Answers:
    """Streams without an end; `sent` counts pieces, `left` is set when the client is gone."""

    def __init__(self) -> None:
        self.sent, self.left = 0, asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None

        def left() -> None:
            self.left.set()
            task.cancel()

        scope["extensions"][ON_LEAVE](left)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": PIECE, "more_body": True})
            self.sent += 1


@asynccontextmanager
async def connected(app: Answers, window: int = 4096) -> AsyncIterator[socket.socket]:
    server = HttpServer(app, "127.0.0.1", 0)
    await server.start()
    try:
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
            peer.setblocking(False)
            await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", server.port))
            await asyncio.get_running_loop().sock_sendall(peer, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            yield peer
    finally:
        await server.stop(0.1)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "WRITE_TIMEOUT_S", 0.5)


async def test_one_that_never_reads_is_cut() -> None:
    app = Answers()
    async with connected(app):
        async with asyncio.timeout(20):
            await app.left.wait()
        before = app.sent
        await asyncio.sleep(0.1)
        assert app.sent == before, "the work for it has ended"


async def test_one_that_reads_a_byte_now_and_then_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "READ_RATE", 1 << 20)
    app = Answers()
    async with connected(app) as peer:

        async def dawdles() -> None:
            while True:
                await asyncio.get_running_loop().sock_recv(peer, 1)
                await asyncio.sleep(0.02)

        reading = asyncio.create_task(dawdles())
        async with asyncio.timeout(20):
            await app.left.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_one_that_reads_slowly_and_steadily_stays() -> None:
    app = Answers()
    async with connected(app, 1 << 20) as peer:
        until = asyncio.get_running_loop().time() + 2.0
        while asyncio.get_running_loop().time() < until:
            assert await asyncio.get_running_loop().sock_recv(peer, 65536)
            await asyncio.sleep(0.005)
        assert not app.left.is_set()
