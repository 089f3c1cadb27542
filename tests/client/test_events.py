"""Streams of events: lines end at \\n or \\r\\n only, however the bytes are cut, in every client of ours."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from cosmos3_serve.bench import load
from cosmos3_serve.client.events import parse_events, split_lines
from cosmos3_serve.errors import ContractViolation
from cosmos3_serve.reasoner_client import ask

ODD = "one\u2028two\u2029three\u0085four\x0bfive\x0csix\x1cseven"
ENDS = [b"\n", b"\r\n"]
SIZES = [1, 2, 7, 10_000]


async def in_pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("size", SIZES)
async def test_lines_end_where_the_bytes_say(end: bytes, size: int) -> None:
    lines = [ODD.encode(), b"", b"a\rb", b"last, unfinished"]
    assert [line async for line in split_lines(in_pieces(end.join(lines), size))] == lines


@pytest.mark.parametrize("size", SIZES)
async def test_a_line_past_the_bound_is_refused(size: int) -> None:
    fits, more = b"x" * 100 + b"\n", b"x" * 101
    assert len([line async for line in split_lines(in_pieces(fits * 3, size), 100)]) == 3
    for data in (more, fits + more + b"\n"):
        with pytest.raises(ContractViolation, match="larger than 100 bytes"):
            [line async for line in split_lines(in_pieces(data, size), 100)]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("events", [ask._events, load._events])
@pytest.mark.parametrize("size", SIZES)
async def test_an_answer_may_hold_any_character(
    size: int, events: Callable[[httpx.Response], AsyncIterator[dict[str, Any]]], end: bytes
) -> None:
    sent = {"choices": [{"delta": {"content": ODD[:25]}}]}
    lines = [b"data: " + json.dumps(sent, ensure_ascii=False).encode(), b"", b": comment", b"data: [DONE]", b"", b""]
    response = httpx.Response(200, content=in_pieces(end.join(lines), size))
    assert [event async for event in events(response)] == [sent]


async def test_a_batch_event_may_hold_any_character() -> None:
    data = json.dumps({"text": ODD[:25]}, ensure_ascii=False)
    found = [m async for m in parse_events(in_pieces(f"id: 1\r\ndata: {data}\r\n\r\n".encode(), 3))]
    assert [(m.id, m.data) for m in found] == [("1", data)]
