"""Bodies over a real connection: every byte once, also where the connection is read past httpx's parser."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from cosmos3_serve.client.delivery.reading import LONG_BYTES, chunks

DATA = os.urandom(5 * LONG_BYTES + 321)
Respond = Callable[[asyncio.StreamWriter], None]


def declared(data: bytes = DATA, length: int = len(DATA)) -> Respond:
    def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode() + data)

    return respond


def in_chunks(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for start in range(0, len(DATA), 100_000):
        piece = DATA[start : start + 100_000]
        writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
    writer.write(b"0\r\n\r\n")


def to_the_end(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + DATA)


@asynccontextmanager
async def served(respond: Respond, *, close: bool = True) -> AsyncIterator[tuple[str, list[int]]]:
    """An address, and how many requests each of its connections brought."""
    requests: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(requests)
        requests.append(0)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                requests[number] += 1
                respond(writer)
                await writer.drain()
                if close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", requests


async def read(client: httpx.AsyncClient, url: str, got: bytearray, read_s: float = 5) -> int:
    """Collects into `got`; the largest chunk."""
    largest = 0
    async with client.stream("GET", url) as response:
        async for chunk in chunks(response, read_s=read_s):
            got += chunk
            largest = max(largest, len(chunk))
    return largest


@pytest.mark.parametrize("respond", [declared(), in_chunks, to_the_end])
async def test_every_byte_comes_once_and_in_order(respond: Respond) -> None:
    async with served(respond) as (url, _), httpx.AsyncClient() as client:
        got = bytearray()
        largest = await read(client, url, got)
    assert got == DATA
    assert (largest > 64 * 1024) == (respond not in (in_chunks, to_the_end)), "past the parser, where that is safe"


async def test_a_connection_is_used_again_after_a_short_body_and_not_after_a_long_one() -> None:
    short = DATA[:1000]
    async with served(declared(short, len(short)), close=False) as (url, requests), httpx.AsyncClient() as client:
        for _ in range(3):
            got = bytearray()
            await read(client, url, got)
            assert got == short
    assert requests == [3]
    async with served(declared(), close=False) as (url, requests), httpx.AsyncClient() as client:
        for _ in range(2):
            got = bytearray()
            await read(client, url, got)
            assert got == DATA
    assert requests == [1, 1]


@pytest.mark.parametrize("missing", [1, 2 * LONG_BYTES, len(DATA) - 10])
async def test_what_came_before_a_cut_is_given(missing: int) -> None:
    async with served(declared(DATA[:-missing])) as (url, _), httpx.AsyncClient() as client:
        got = bytearray()
        with pytest.raises(httpx.TransportError):
            await read(client, url, got)
    assert got == DATA[:-missing]


async def test_silence_in_the_middle_of_a_long_body_ends_it() -> None:
    async with served(declared(DATA[:-1]), close=False) as (url, _), httpx.AsyncClient() as client:
        got = bytearray()
        with pytest.raises(httpx.ReadTimeout):
            await read(client, url, got, read_s=0.2)
    assert got == DATA[:-1]


async def test_bytes_past_the_declared_end_are_not_the_bodys() -> None:
    async with served(declared(DATA + b"more")) as (url, _), httpx.AsyncClient() as client:
        got = bytearray()
        await read(client, url, got)
    assert got == DATA
