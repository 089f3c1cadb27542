"""Load on a front door, from a process of its own: keep-alive connections that ask, check the answer, and ask again.

Run as a script: reads one JSON job a line, prints `ready` once connected, waits for a line, works, prints one JSON
result. An answer counts only if it is whole: status 200, a choice in it, and of a stream every token and `[DONE]`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import httptools
import uvloop

PATH = "/v1/chat/completions"
LATE_S = 120.0


class Asker(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, request: bytes, tokens: int, result: dict[str, Any]) -> None:
        self.request, self.tokens, self.result = request, tokens, result
        self.until = 0.0
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def go(self, until: float) -> None:
        self.until = until
        self._ask()

    def _ask(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.pieces: list[bytes] = []
        self.began = time.perf_counter()
        self.first = 0.0
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        if not self.first:
            self.first = time.perf_counter()
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        now = time.perf_counter()
        wrong = self._wrong(b"".join(self.pieces))
        if wrong:
            self._fail(wrong)
            return
        self.result["answers"] += 1
        self.result["seconds"].append(now - self.began)
        self.result["first"].append(self.first - self.began)
        if now < self.until:
            self._ask()
        elif not self.over.done():
            self.over.set_result(None)

    def _wrong(self, body: bytes) -> str:
        status = self.parser.get_status_code()
        if status != 200:
            return f"HTTP {status}: {body[:200]!r}"
        if b'"choices"' not in body:
            return f"no choice: {body[:200]!r}"
        if self.tokens and not body.rstrip().endswith(b"data: [DONE]"):
            return "a stream without [DONE]"
        if self.tokens and body.count(b'"content":') < self.tokens:
            return f"{body.count(b'content')} of {self.tokens} tokens"
        return ""

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("the connection was closed")

    def _fail(self, why: str) -> None:
        if not self.over.done():
            self.result["errors"].append(why)
            self.over.set_result(None)


def requests(job: dict[str, Any]) -> list[bytes]:
    """One request a connection: bodies in turn, each connection a session."""
    bodies = [Path(name).read_bytes() for name in job["bodies"]]
    found = []
    for number in range(job["concurrency"]):
        body = bodies[number % len(bodies)]
        lines = [
            f"POST {PATH} HTTP/1.1",
            f"host: {job['host']}:{job['port']}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in job["headers"].items()),
            f"x-dynamo-session-id: bench-{number}",
        ]
        found.append("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    return found


async def work(job: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {"answers": 0, "errors": [], "seconds": [], "first": []}
    loop = asyncio.get_running_loop()
    askers = []
    for request in requests(job):
        _, asker = await loop.create_connection(
            lambda request=request: Asker(request, job["tokens"], result),  # type: ignore[misc]
            job["host"],
            job["port"],
        )
        askers.append(asker)
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    began = time.perf_counter()
    for asker in askers:
        asker.go(began + job["seconds"])
    done, late = await asyncio.wait([asker.over for asker in askers], timeout=job["seconds"] + LATE_S)
    result["wall"] = time.perf_counter() - began
    if late:
        result["errors"].append(f"{len(late)} of {len(done) + len(late)} requests had no answer")
    for asker in askers:
        asker.transport.close()
    return result


if __name__ == "__main__":
    while line := sys.stdin.readline():
        found = uvloop.run(work(json.loads(line)))
        print(json.dumps(found), flush=True)
