"""HttpServer: uvicorn inside somebody else's event loop, on a port of our own, with bounds on what a peer may do.

The ingress replica answers the public port itself. Serve's proxies would answer `/-/healthz` and `/-/routes` without a
token and read bodies before our application sees them (docs/contract.md 2.1).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from cosmos3_serve.errors import StartRefused

log = structlog.get_logger(__name__)

HEADER_BYTES = 32 * 1024
HEADER_TIMEOUT_S = 20.0
KEEP_ALIVE_S = 30
BACKLOG = 512
MAX_CONNECTIONS = 2048
PORT_WAIT_S = 15.0
WRITE_TIMEOUT_S = 60.0
READ_RATE = 1024  # bytes a second that a client must take in that time, while more waits for it
ON_LEAVE = "cosmos3.on_leave"  # ASGI extension: a function to which the application gives what is to be called


class HeadersTooLarge(Exception):
    """Never leaves the parser: it makes the request an invalid one."""


class _UntilClose(RequestResponseCycle):
    """An answer to HTTP/1.0, which knows no chunks: without a Content-Length the end of the connection ends it."""

    _unmeasured = False

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            named = {name.lower() for name, _ in message.get("headers", [])}
            if b"content-length" not in named:
                self._unmeasured, self.chunked_encoding, self.keep_alive = True, False, False
        elif message["type"] == "http.response.body" and self._unmeasured:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class BoundedProtocol(HttpToolsProtocol):
    """A parser in C, with the bounds that it lacks: on the size of the headers, on the time from the first byte to
    their end, and on the time for which an answer waits for a peer that does not read it.

    In C because every token of a streamed answer passes here.
    """

    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _unread = 0
    _leave: Callable[[], None] | None = None
    _in_head = False
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.close()
            return
        self._header_timer = self.loop.call_later(HEADER_TIMEOUT_S, self._too_slow)

    def data_received(self, data: bytes) -> None:
        if self._header_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._header_timer = self.loop.call_later(HEADER_TIMEOUT_S, self._too_slow)
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEADER_BYTES and not self.transport.is_closing():
                self.send_400_response("The request's headers are too large.")
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()
        self.scope["extensions"] = {ON_LEAVE: self._on_leave}  # type: ignore[dict-item]

    def _on_leave(self, told: Callable[[], None] | None) -> None:
        """Tell this when the peer leaves; None: nobody. For the application, which else keeps a task in `receive`."""
        self._leave = told
        if told is not None:
            self.flow.resume_reading()  # else the peer's end is not seen
            if self.transport.is_closing():
                self.loop.call_soon(told)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > HEADER_BYTES:
            raise HeadersTooLarge
        super().on_headers_complete()
        if self.cycle is not None and self.scope["http_version"] == "1.0":
            self.cycle.__class__ = _UntilClose  # uvicorn has no other place to say which class; it has not begun yet
        if getattr(self.server_state, "leaving", False) and self.cycle is not None:
            self.cycle.keep_alive = False  # the answer says so, and its client goes elsewhere with the next question

    def on_response_complete(self) -> None:
        self._stop_timer()  # the keep-alive timer takes over
        self._watch_reader()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()

    def _watch_reader(self) -> None:
        """What waits to be read keeps an application, or a closing connection, waiting."""
        self._unread = self.transport.get_write_buffer_size()
        if self._unread and self._write_timer is None:
            self._write_timer = self.loop.call_later(WRITE_TIMEOUT_S, self._look_at_reader)

    def _stop_watching(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _look_at_reader(self) -> None:
        self._write_timer = None
        before, now = self._unread, self.transport.get_write_buffer_size()
        if not now:
            return
        if before - now >= READ_RATE * WRITE_TIMEOUT_S:
            self._watch_reader()
            return
        log.warning("client_does_not_read", seconds=WRITE_TIMEOUT_S)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_watching()
        super().connection_lost(exc)
        if self._leave is not None:
            self._leave()

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _too_slow(self) -> None:
        self._header_timer = None
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()


class _State(ServerState):
    leaving = False


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals belong to the process that owns us


class HttpServer:
    """Serves one ASGI application on one port of the running event loop.

    Args:
        port: 0 picks a free one; `self.port` says which.

    Raises:
        StartRefused: the address cannot be bound.
    """

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self._socket = listening_socket(host, port)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            loop="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="critical",  # its own errors are answered and logged by our middleware
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            backlog=BACKLOG,
            reset_contextvars=True,
        )
        self._server = _Server(config)
        self._server.server_state = self._state = _State()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; returns once connections are accepted."""
        self._task = asyncio.create_task(self._server.serve([self._socket]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise StartRefused("the HTTP server ended while it started", code="http_server")
            await asyncio.sleep(0.005)

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done() and self._server.started

    def leave(self) -> None:
        """Listen no longer; answer what still comes on open connections, each for the last time. `stop` follows.

        For a replica that is replaced while others share its port: to close a connection under a question that is on
        its way would look like a death to the client.
        """
        self._state.leaving = True
        for server in self._server.servers:
            server.close()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Accept nothing new, let running answers end within `grace_s`, then cut them."""
        if self._task is None:
            self._socket.close()
            return
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_s))
        self._server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


def listening_socket(host: str, port: int, *, shared: bool = True, again: bool = True) -> socket.socket:
    """A bound socket.

    Args:
        shared: set SO_REUSEPORT, so that a replaced replica can bind while the old one drains.
        again: set SO_REUSEADDR, so that connections that a former server left in TIME_WAIT do not matter.

    Raises:
        StartRefused: the address is in use, not ours, or not permitted.
    """
    family, _, _, _, address = _resolve(host, port)
    # Named TCP, or asyncio leaves Nagle's algorithm on, and an answer's body waits 40 ms for a peer's delayed ACK.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(again))
        if shared and hasattr(socket, "SO_REUSEPORT"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        _keep_alive(sock)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
    except OSError as error:
        sock.close()
        reason = "it is in use" if error.errno == errno.EADDRINUSE else (error.strerror or "the address is not ours")
        raise StartRefused(
            f"cannot listen on {host}:{port}: {reason}",
            code="port_unavailable",
            remedy="choose another --port or --host",
        ) from None
    sock.setblocking(False)
    return sock


def _keep_alive(sock: socket.socket) -> None:
    """Connections inherit it: a client whose machine is gone leaves, and its blocking call does not wait for ever."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def hold_port(host: str, port: int) -> socket.socket:
    """Bind the public address without listening; waits a little for a killed service to let go of it.

    Two services must never share a port without knowing. The held socket has SO_REUSEPORT alone, so that our own
    replicas can bind beside it; the look before has SO_REUSEADDR alone, so that it fails beside any socket that listens
    and beside one that is held like this.
    """
    deadline = time.monotonic() + PORT_WAIT_S
    while True:
        try:
            listening_socket(host, port, shared=False).close()
            try:
                return listening_socket(host, port, again=False)
            except StartRefused:
                return listening_socket(host, port)  # only what another program left in TIME_WAIT is in the way
        except StartRefused:
            if port == 0 or time.monotonic() > deadline:
                raise
            time.sleep(0.25)


def endpoint_url(host: str, port: int, *, address: str) -> str:
    """The URL under which a bound socket is reached; a wildcard `host` stands for `address`."""
    host = address if host in ("0.0.0.0", "::", "") else host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _resolve(host: str, port: int) -> tuple[Any, ...]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError:
        raise StartRefused(
            f"the host {host!r} cannot be resolved", code="port_unavailable", remedy="give an address of this machine"
        ) from None
