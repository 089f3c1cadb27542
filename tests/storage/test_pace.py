"""Admission of uploads: what may be in flight, and how long it may take, on links of every kind."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from cosmos3_serve.errors import StorageFailure
from cosmos3_serve.storage.pace import MIB, SLOWEST, Pace, TimeLimits

if TYPE_CHECKING:
    from conftest import Bucket  # type: ignore[import-not-found]

TIMEOUT = StorageFailure("late", code="storage_timeout")
BUSY = StorageFailure("busy", code="storage_unavailable")


async def one(pace: Pace, size: int = MIB, failure: Exception | None = None) -> None:
    async with pace.admitted(1, size):
        if failure:
            raise failure


async def test_the_window_grows_with_success_and_halves_after_a_passing_failure() -> None:
    pace = Pace(TimeLimits(), first=4, most=6)
    for _ in range(5):
        await one(pace)
    assert pace.window == 6
    for failure, window in ((BUSY, 3.0), (TIMEOUT, 1.5), (TIMEOUT, 1.0), (TIMEOUT, 1.0)):
        with pytest.raises(StorageFailure):
            await one(pace, failure=failure)
        assert pace.window == window
    with pytest.raises(StorageFailure):
        await one(pace, failure=StorageFailure("no", code="storage_denied"))
    await one(pace)
    assert pace.window == 2, "it grows again"


async def test_time_limits_follow_from_bytes_and_the_rate() -> None:
    now = [0.0]
    pace = Pace(TimeLimits(answer_s=60, bytes_per_s=64 * 1024), clock=lambda: now[0])
    assert pace.time_limit_s(64 * 1024) == 61
    assert pace.time_limit_s(32 * MIB) == 60 + 512, "four parts of 8 MiB at half a Mbit/s"
    async with pace.admitted(1, 8 * MIB):
        now[0] += 0.1  # 80 MiB/s
    assert 60 < pace.time_limit_s(32 * MIB) < 65, "a dead fast link is noticed soon"
    for _ in range(40):
        with pytest.raises(StorageFailure):
            await one(pace, failure=TIMEOUT)
    assert pace.time_limit_s(MIB) == 60 + SLOWEST * 16, "bounded on a link that never answers"


async def test_bytes_and_requests_in_flight_are_bounded_and_taken_in_order() -> None:
    pace, order = Pace(TimeLimits(), first=3, most=3, most_bytes=10), list[int]()
    gate = asyncio.Event()

    async def work(number: int, size: int) -> None:
        async with pace.admitted(1, size):
            order.append(number)
            assert pace.requests <= 3 and (pace.bytes <= 10 or pace.requests == 1)
            await gate.wait()

    tasks = [asyncio.create_task(work(n, size)) for n, size in enumerate((4, 4, 4, 1, 50))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order == [0, 1], "the third does not fit, and the fourth does not overtake it"
    tasks[2].cancel()
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 1, 3, 4] and (pace.requests, pace.bytes) == (0, 0)


async def test_one_cancelled_while_it_is_admitted_gives_its_room_back() -> None:
    pace = Pace(TimeLimits(), first=1, most=1)
    async with pace.admitted(1, 5):
        waiting = asyncio.create_task(one(pace, 5))
        await asyncio.sleep(0)
    waiting.cancel()  # its turn was set in the line above and has not run yet
    await asyncio.gather(waiting, return_exceptions=True)
    assert (pace.requests, pace.bytes) == (0, 0)
    await asyncio.wait_for(one(pace), 5)


class SlowLink:
    """A TCP relay that passes `rate` bytes a second to the server, over all connections."""

    def __init__(self, endpoint: str, rate: float) -> None:
        parts = urlsplit(endpoint)
        self._up, self._rate = (parts.hostname, parts.port), rate
        self._turn = asyncio.Lock()
        self.sent = 0

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0, limit=64 * 1024)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._up)

        async def up() -> None:
            while data := await reader.read(64 * 1024):
                async with self._turn:
                    await asyncio.sleep(len(data) / self._rate)
                self.sent += len(data)
                up_writer.write(data)
                await up_writer.drain()

        async def down() -> None:
            while data := await up_reader.read(64 * 1024):
                writer.write(data)
                await writer.drain()

        tasks = [asyncio.create_task(up()), asyncio.create_task(down())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        up_writer.close()
        writer.close()


@pytest.mark.parametrize(
    ("reckoned", "most_sent"),
    [(8 * MIB, 1.2), (32 * MIB, 3.5)],
    ids=["no slower than reckoned with", "a quarter of what is reckoned with"],
)
async def test_a_link_much_slower_than_its_silence_allows_finishes(
    bucket: Bucket, tmp_path: Path, reckoned: float, most_sent: float
) -> None:
    """Four parts at once need 4 s, ten times the silence that is allowed: 60 s and 1 Mbit/s on a small scale."""
    source = tmp_path / "source"
    source.write_bytes(os.urandom(32 * MIB))
    link = SlowLink(bucket.s3.endpoint, 8 * MIB)
    async with link as url:
        store = bucket.store(endpoint=url, limits=TimeLimits(connect_s=5, answer_s=0.4, bytes_per_s=reckoned))
        await store.put_file("k", source)
    assert await bucket.store().hash_object("k") == (32 * MIB, hashlib.sha256(source.read_bytes()).hexdigest())
    assert link.sent < most_sent * 32 * MIB
