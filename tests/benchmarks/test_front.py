"""The front door's benchmark counts an answer only if it is whole, and a cell only if replicas had its questions."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from measure import front, result, stub_engine, videos
from measure.front import Door, Kind, Load
from measure.result import InvalidRun

CHOICE = b'{"choices": [{"message": {"content": "x"}}]}'
EVENT = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'


def whole(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@contextmanager
def server(answer: bytes) -> Iterator[tuple[int, list[int]]]:
    """Says the same to everybody; port, and how often it was asked."""
    asked: list[int] = [0]
    loop = asyncio.new_event_loop()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = next(int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.startswith(b"content-length"))
                await reader.readexactly(size)
                asked[0] += 1
                if not answer:
                    writer.close()
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    started = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield started.sockets[0].getsockname()[1], asked
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def cell(tmp_path: Path, answer: bytes, *, tokens: int = 0, lost: int = 0, seconds: float = 0.2) -> dict[str, Any]:
    body = tmp_path / "body.json"
    body.write_text("{}")
    with server(answer) as (port, asked):
        me = [os.getpid()]
        door = Door("x", "127.0.0.1", port, "m", {}, lambda: me, lambda: me, lambda: asked[0] - lost * bool(asked[0]))
        load = Load()
        try:
            return load.cell(door, Kind("text", lambda _: [str(body)], tokens), 2, seconds)
        finally:
            load.close()


@pytest.mark.parametrize(
    ("answer", "tokens", "reason"),
    [
        (whole(CHOICE, "500 Oops"), 0, "HTTP 500"),
        (whole(b"{}"), 0, "no choice"),
        (whole(EVENT), 1, "without"),
        (whole(EVENT + b"data: [DONE]\n\n"), 2, "of 2 tokens"),
        (b"", 0, "closed"),
    ],
    ids=["status", "no choice", "no DONE", "a token missing", "closed"],
)
def test_an_answer_that_is_not_whole_ends_the_run(tmp_path: Path, answer: bytes, tokens: int, reason: str) -> None:
    with pytest.raises(InvalidRun, match=reason):
        cell(tmp_path, answer, tokens=tokens)


def test_questions_that_reached_no_replica_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(InvalidRun, match="replicas had"):
        cell(tmp_path, whole(CHOICE), lost=1)


def test_a_whole_run_has_figures(tmp_path: Path) -> None:
    # The kernel counts hundredths of a second, of which a busy machine may give none in a fifth of one.
    said = cell(tmp_path, whole(EVENT * 2 + b"data: [DONE]\n\n"), tokens=2, seconds=2.0)
    assert said["requests"] >= 2 and said["cpu_ms"] > 0 and said["req_s"] > 0


def test_a_busy_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    with pytest.raises(InvalidRun, match="too busy"):
        result.quiet(3.0)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.0, 0.0))
    result.quiet(3.0)


def test_aims_compare_within_a_repeat() -> None:
    def cells(*values: float) -> list[dict[str, Any]]:
        return [{"cpu_ms": value} for value in values]

    found = {
        (front.ONE, 1, front.OURS): cells(1.0, 9.0, 2.0),
        (front.ONE, 1, front.DYNAMO): cells(10.0, 30.0, 10.0),
        (front.STREAM, 1, front.OURS): cells(11.0, 10.5, 8.0),
    }
    rows = front.aims(found).rows
    assert [row[-1] for row in rows[1:]] == ["yes", "**no**"]
    assert rows[1][3].startswith("0.20 of Dynamo's")


def test_a_video_has_the_size_that_it_claims_and_plays(tmp_path: Path) -> None:
    import av

    one, other = videos.noise_video(videos.MIB, 1), videos.noise_video(videos.MIB, 2)
    assert len(one) == len(other) == videos.MIB and one != other
    path = tmp_path / "x.mp4"
    path.write_bytes(one)
    with av.open(str(path)) as container:
        assert sum(1 for _ in container.decode(video=0)) > 2


def test_the_stub_refuses_by_name_what_it_does_not_hold() -> None:
    def body(url: Any) -> dict[str, Any]:
        return {"messages": [{"content": [{"type": "video_url", "video_url": url, "uuid": "u"}]}]}

    stub_engine.HELD.clear()
    said = [stub_engine.taken(body(url)) for url in (None, {"url": "data:,x"}, None)]
    assert said == ["missed", "sent", "named"]
    assert stub_engine.taken({"messages": [{"content": "hello"}]}) == "text"
    assert json.loads(stub_engine.whole(2, True).partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] == 2


def test_a_rivals_failure_is_told_without_figures_and_ours_ends_the_run() -> None:
    class Broken:
        def cell(self, *_: Any) -> dict[str, Any]:
            raise InvalidRun("9 failed")

    def door(name: str) -> Door:
        return Door(name, "h", 1, "m", {}, list, list, int)

    kind = Kind(front.TEXT, lambda _: [])
    for name in (front.OURS, front.PLAIN):
        with pytest.raises(InvalidRun):
            front.attempt(Broken(), door(name), kind, 1, 0.1)  # type: ignore[arg-type]
    failed = {"failed": "9 failed"}
    good = {"cpu_ms": 1.0, "req_s": 2.0, "p50_ms": 3.0, "p99_ms": 4.0}
    cells = {(front.TEXT, 1, front.OURS): [good, good], (front.TEXT, 1, front.DYNAMO): [good, failed]}
    rows = [list(row) for row in front.table("", cells).rows]
    assert [front.TEXT, 1, front.DYNAMO, "no figures: answers failed", "", "", ""] in rows
    assert len(front.aims(cells).rows) == 1, "nothing to compare with"
