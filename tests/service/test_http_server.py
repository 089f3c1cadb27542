"""The HTTP server as a peer meets it: over a raw socket, with headers and bodies that no client library would send."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.service import http_server
from cosmos3_serve.service.auth import BearerAuth
from cosmos3_serve.service.http_server import HttpServer, endpoint_url, hold_port, listening_socket
from cosmos3_serve.service.limits import BodyLimit
from cosmos3_serve.service.problems import Problems
from cosmos3_serve.service.tokens import TokenBook

TOKEN = "right-token-123"
AUTH = f"Authorization: Bearer {TOKEN}\r\n".encode()
read_lengths: list[int] = []


async def reader(scope: Any, receive: Any, send: Any) -> None:
    body = await Request(scope, receive).body()
    read_lengths.append(len(body))
    await PlainTextResponse(f"read {len(body)}")(scope, receive, send)


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    read_lengths.clear()
    app = BearerAuth(Problems(BodyLimit(reader, 100_000)), TokenBook(TOKEN, None))
    server = HttpServer(app, "127.0.0.1", 0)
    await server.start()
    yield server
    await server.stop(1)


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, server: HttpServer) -> "Peer":
        return cls(*await asyncio.open_connection("127.0.0.1", server.port))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        async with asyncio.timeout(10):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = next(int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length"))
            return int(head.split()[1]), await self.reader.readexactly(length)

    async def closed(self) -> bool:
        async with asyncio.timeout(10):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


async def test_401_comes_before_the_body_was_sent(server: HttpServer) -> None:
    peer = await Peer.to(server)
    await peer.send(b"POST /v1/batches HTTP/1.1\r\nHost: x\r\nContent-Length: 104857600\r\n\r\n")
    status, body = await peer.answer()
    assert status == 401 and json.loads(body)["detail"] == "invalid bearer token"
    await peer.send(b"x" * 1000)
    assert await peer.closed()
    assert read_lengths == []


async def test_401_is_readable_although_a_small_body_came_along(server: HttpServer) -> None:
    for _ in range(20):
        peer = await Peer.to(server)
        await peer.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n" + b"x" * 60000)
        assert (await peer.answer())[0] == 401
        assert await peer.closed()
    assert read_lengths == []


async def test_no_100_continue_without_a_token(server: HttpServer) -> None:
    peer = await Peer.to(server)
    await peer.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    assert (await peer.answer())[0] == 401
    peer = await Peer.to(server)
    await peer.send(b"POST / HTTP/1.1\r\nHost: x\r\n" + AUTH + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    assert (await peer.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
    await peer.send(b"hello")
    assert await peer.answer() == (200, b"read 5")


async def test_an_announced_excess_is_413_before_the_body_was_sent(server: HttpServer) -> None:
    peer = await Peer.to(server)
    await peer.send(b"POST / HTTP/1.1\r\nHost: x\r\n" + AUTH + b"Content-Length: 100001\r\n\r\n")
    status, body = await peer.answer()
    assert status == 413 and "100000" in json.loads(body)["detail"]


async def test_a_chunked_excess_is_413_while_it_streams(server: HttpServer) -> None:
    peer = await Peer.to(server)
    await peer.send(b"POST / HTTP/1.1\r\nHost: x\r\n" + AUTH + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(3):
        await peer.send(b"9c40\r\n" + b"x" * 40_000 + b"\r\n")
    assert (await peer.answer())[0] == 413
    assert await peer.closed() and read_lengths == []


async def test_non_ascii_authorization_is_401(server: HttpServer) -> None:
    peer = await Peer.to(server)
    await peer.send("GET /health HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer schlüssel\r\n\r\n".encode())
    assert (await peer.answer())[0] == 401


async def test_endless_headers_end_the_connection(server: HttpServer) -> None:
    peer = await Peer.to(server)
    await peer.send(b"GET / HTTP/1.1\r\nHost: x\r\n")
    with pytest.raises((ConnectionError, AssertionError)):
        for i in range(200):
            await peer.send(b"X-%d: %s\r\n" % (i, b"y" * 1000))
            await asyncio.sleep(0.001)
        assert not await peer.closed()


async def test_a_peer_that_dawdles_over_its_headers_is_let_go(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "HEADER_TIMEOUT_S", 0.1)
    silent, dawdling = await Peer.to(server), await Peer.to(server)
    await dawdling.send(b"GET / HTTP/1.1\r\n")
    assert await silent.closed() and await dawdling.closed()
    busy = await Peer.to(server)
    await busy.send(b"POST / HTTP/1.1\r\nHost: x\r\n" + AUTH + b"Content-Length: 5\r\n\r\n")
    await asyncio.sleep(0.3)  # longer than the headers may take: bodies have their own limit
    await busy.send(b"hello")
    assert await busy.answer() == (200, b"read 5")
    await busy.send(b"GET / HTTP/1.1\r\nHost: x\r\n" + AUTH + b"\r\n")  # the connection is kept
    assert (await busy.answer())[0] == 200


async def test_too_many_connections_are_turned_away(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 2)
    kept = [await Peer.to(server) for _ in range(2)]
    assert await (await Peer.to(server)).closed()
    await kept[0].send(b"GET / HTTP/1.1\r\nHost: x\r\n" + AUTH + b"\r\n")
    assert (await kept[0].answer())[0] == 200


async def test_stop_lets_a_running_answer_end() -> None:
    release = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await PlainTextResponse("done")(scope, receive, send)

    server = HttpServer(slow, "127.0.0.1", 0)
    await server.start()
    peer = await Peer.to(server)
    await peer.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.sleep(0.05)
    stopping = asyncio.create_task(server.stop(10))
    await asyncio.sleep(0.15)
    with pytest.raises(OSError):
        await Peer.to(server)
    release.set()
    assert await peer.answer() == (200, b"done")
    await stopping
    assert not server.alive


async def test_a_client_whose_machine_is_gone_is_noticed(server: HttpServer) -> None:
    peer = await Peer.to(server)
    await peer.send(b"GET / HTTP/1.1\r\nHost: x\r\n" + AUTH + b"\r\n")
    await peer.answer()
    accepted = [c.transport.get_extra_info("socket") for c in server._server.server_state.connections]
    assert [sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for sock in accepted] == [1]
    assert accepted[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


def test_a_taken_port_is_refused_by_name() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartRefused, match=str(port)):
            listening_socket("127.0.0.1", port, shared=False)
    with pytest.raises(StartRefused):
        listening_socket("host.invalid", 0)


async def test_a_replacement_may_bind_while_the_old_one_drains(server: HttpServer) -> None:
    second = HttpServer(reader, "127.0.0.1", server.port)
    await second.start()
    assert second.port == server.port
    await second.stop(1)
    with pytest.raises(StartRefused):
        listening_socket("127.0.0.1", server.port, shared=False)


def test_a_port_is_held_without_taking_connections_and_two_services_do_not_share_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "PORT_WAIT_S", 0.0)
    with hold_port("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=2):
            pass
        with pytest.raises(StartRefused) as refused:
            hold_port("127.0.0.1", port)
        assert refused.value.stable_code == "port_unavailable"
        listening_socket("127.0.0.1", port).close()  # our own replica can


async def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_headers(server: HttpServer) -> None:
    reading, writing = await asyncio.open_connection("127.0.0.1", server.port)
    writing.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + AUTH + b"\r\n")
    assert b"200" in await reading.readline()
    (connection,) = server._server.server_state.connections
    accepted = connection.transport.get_extra_info("socket")
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    writing.close()


async def test_headers_that_are_too_large_are_refused_however_they_come(server: HttpServer) -> None:
    head = b"GET / HTTP/1.1\r\nHost: x\r\n" + AUTH + b"X-Large: " + b"y" * 40_000 + b"\r\n\r\n"
    for size in (len(head), 5000):
        peer = await Peer.to(server)
        try:
            for start in range(0, len(head), size):
                await peer.send(head[start : start + size])
            assert (await peer.answer())[0] == 400
        except ConnectionError:
            pass  # refused while it was still sending
        assert await peer.closed()


async def test_a_large_body_after_its_headers_is_no_header(server: HttpServer) -> None:
    peer = await Peer.to(server)
    for _ in range(2):  # the connection is kept
        await peer.send(b"POST / HTTP/1.1\r\nHost: x\r\n" + AUTH + b"Content-Length: 90000\r\n\r\n" + b"x" * 90_000)
        assert await peer.answer() == (200, b"read 90000")


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: +5\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"X: a\x00b\r\n",
        b"X: a\r\n folded\r\n",
    ],
)
async def test_a_head_that_two_parsers_could_read_differently_is_refused(server: HttpServer, head: bytes) -> None:
    peer = await Peer.to(server)
    await peer.send(b"POST / HTTP/1.1\r\nHost: x\r\n" + AUTH + head + b"\r\nhello")
    async with asyncio.timeout(10):
        assert (await peer.reader.readline()).split()[1] == b"400"
    assert read_lengths == []


@pytest.mark.parametrize(
    ("host", "address", "url"),
    [
        ("0.0.0.0", "127.0.0.1", "http://127.0.0.1:8000"),
        ("::", "10.0.0.7", "http://10.0.0.7:8000"),
        ("", "fd00::1", "http://[fd00::1]:8000"),
        ("127.0.0.1", "10.0.0.7", "http://127.0.0.1:8000"),
        ("::1", "10.0.0.7", "http://[::1]:8000"),
    ],
)
def test_the_endpoint_of_a_bound_socket(host: str, address: str, url: str) -> None:
    assert endpoint_url(host, 8000, address=address) == url


GET = b"GET / HTTP/1.1\r\nHost: x\r\n" + AUTH + b"\r\n"


async def test_one_that_leaves_answers_once_more_on_every_open_connection(server: HttpServer) -> None:
    idle, fresh = await Peer.to(server), await Peer.to(server)
    await idle.send(GET)
    assert (await idle.answer())[0] == 200
    server.leave()
    await asyncio.sleep(0.05)
    with pytest.raises(ConnectionRefusedError):
        await Peer.to(server)
    for peer in (idle, fresh):
        await peer.send(GET)
        async with asyncio.timeout(10):
            head = await peer.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in head.lower()
        await peer.reader.readexactly(len(b"read 0"))
        assert await peer.closed()
    assert server.alive


async def test_another_on_the_same_port_takes_what_comes_then(server: HttpServer) -> None:
    other = HttpServer(BearerAuth(reader, TokenBook(TOKEN, None)), "127.0.0.1", server.port)
    await other.start()
    try:
        server.leave()
        for _ in range(20):
            peer = await Peer.to(other)
            await peer.send(GET)
            assert (await peer.answer())[0] == 200
            peer.writer.close()
    finally:
        await other.stop(1)


@pytest.mark.parametrize("pieces", [[b"one", b"", b"two"], [], [b"x" * 100_000] * 5])
async def test_an_answer_to_http_1_0_has_no_chunks_and_ends_with_the_connection(pieces: list[bytes]) -> None:
    async def streams(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    server = HttpServer(streams, "127.0.0.1", 0)
    await server.start()
    try:
        for head in (b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"):
            peer = await Peer.to(server)
            await peer.send(head)
            async with asyncio.timeout(10):
                said, _, body = (await peer.reader.read(-1)).partition(b"\r\n\r\n")
            assert b"transfer-encoding" not in said.lower() and body == b"".join(pieces)
        peer = await Peer.to(server)
        await peer.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"transfer-encoding: chunked" in await peer.reader.read(-1)
    finally:
        await server.stop(1)


async def test_an_answer_with_a_length_is_the_same_to_http_1_0(server: HttpServer) -> None:
    peer = await Peer.to(server)
    await peer.send(b"POST / HTTP/1.0\r\n" + AUTH + b"Content-Length: 3\r\n\r\nabc")
    assert await peer.answer() == (200, b"read 3") and await peer.closed()
