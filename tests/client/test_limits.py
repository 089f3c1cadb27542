"""A batch that is too large is refused with the numbers, before it is sent or as soon as the service says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cosmos3_serve.client.deadline import Deadline
from cosmos3_serve.client.http import Service
from cosmos3_serve.client.limits import default_timeout_s, require_fit
from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.errors import ExitCode, LimitExceeded
from cosmos3_serve.retry import PATIENT

IMAGE = {"name": "a", "prompt": "x", "model_mode": "text2image"}


def batch(count: int, **fields: Any) -> BatchRequest:
    return BatchRequest(samples=[{**IMAGE, "name": f"s{n}", **fields} for n in range(count)])


def test_a_batch_past_the_announced_limits_is_refused_with_every_number() -> None:
    ready = {"limits": {"body_bytes": 1000, "samples": 10}}
    require_fit(ready, batch(10), bytes(1000))
    for samples, size, batches in ((11, 10, 2), (3, 2500, 3), (40, 2500, 4)):
        with pytest.raises(LimitExceeded) as caught:
            require_fit(ready, batch(samples), bytes(size))
        assert caught.value.exit_code == ExitCode.INPUT and caught.value.stable_code == "batch_too_large"
        for number in (f"{samples} samples", f"{size} bytes", "at most 10 samples", "1000 bytes"):
            assert number in caught.value.detail
        assert f"into {batches} or more" in caught.value.remedy


@pytest.mark.parametrize("ready", [{}, {"limits": None}, {"limits": {"samples": 1}}, {"limits": "many"}])
def test_a_service_that_announces_no_limits_is_simply_asked(ready: dict[str, Any]) -> None:
    require_fit(ready, batch(5), bytes(100))


def test_the_default_timeout_follows_from_the_batch() -> None:
    assert default_timeout_s(batch(1)) == 1830
    assert default_timeout_s(batch(1000)) == 1800 + 30_000, "a full batch of images does not fit into 1,800 s"
    assert default_timeout_s(batch(2, model_mode="text2video")) == 1800 + 2 * 189 * 5
    assert default_timeout_s(batch(2, model_mode="text2video", num_frames=25)) == 1800 + 2 * 25 * 5
    assert default_timeout_s(batch(1000, model_mode="text2video")) == 7 * 24 * 3600


class Refusing:
    """A server that answers 413 after the head of a request, and then reads not one byte more, as some do."""

    answer = (
        b"HTTP/1.1 413 Too Large\r\nContent-Type: application/json\r\nContent-Length: 13\r\nConnection: close\r\n\r\n"
    )

    def __init__(self) -> None:
        self.asked = 0

    async def __aenter__(self) -> str:
        self._gone = asyncio.Event()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=4096)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._gone.set()
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answer + b'{"code": "x"}')
        await writer.drain()
        await self._gone.wait()
        writer.close()


async def test_an_answer_that_comes_while_the_body_is_sent_is_read() -> None:
    server = Refusing()
    async with server as url, Service(url, "token", Deadline(30)) as service:
        async with asyncio.timeout(20):
            answer = await service.call("POST", "/v1/batches", content=bytes(64 * 2**20), retry=PATIENT)
    assert (answer.status, answer.body, server.asked) == (413, b'{"code": "x"}', 1)


async def test_a_large_body_arrives_whole() -> None:
    got = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"content-length: 5000000\r\n" in head.lower() and b"transfer-encoding" not in head.lower()
        got.extend(await reader.readexactly(5_000_000))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    body = bytes(range(250)) * 20_000
    async with server, Service(url, "token", Deadline(30)) as service:
        assert (await service.call("POST", "/v1/batches", content=body)).status == 200
    assert bytes(got) == body
