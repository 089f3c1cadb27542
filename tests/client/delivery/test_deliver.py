"""What may lie in the spool and be in flight at once (the rest of the delivery is tested through the whole client)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cosmos3_serve.client.delivery.deliver import EARLY_MOST, SMALL_BYTES, SMALL_MOST, Delivery, windows
from cosmos3_serve.client.delivery.window import Window
from cosmos3_serve.client.publish import UPLOADS
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.errors import LimitExceeded


def artifacts(*sizes: int) -> list[Artifact]:
    return [Artifact(sample="a", path=f"r/a/f{i}", bytes=size, sha256="0" * 64) for i, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [
        ([], 10, []),
        ([3, 3, 3], 10, [[3, 3, 3]]),
        ([5, 5, 1], 10, [[5, 5], [1]]),
        ([10, 1, 10], 10, [[10], [1], [10]]),
        ([6, 6, 6], 10, [[6], [6], [6]]),
    ],
)
def test_windows_fit_and_keep_the_order(sizes: list[int], limit: int, expected: list[list[int]]) -> None:
    assert [[a.bytes for a in window] for window in windows(artifacts(*sizes), limit)] == expected


def test_one_file_larger_than_the_spool_names_both_numbers() -> None:
    with pytest.raises(LimitExceeded, match=r"11 bytes.* 10") as caught:
        list(windows(artifacts(3, 11), 10))
    assert "--spool-bytes" in caught.value.remedy


async def test_small_downloads_and_uploads_overlap_and_large_downloads_are_few() -> None:
    now, most = {"small": 0, "large": 0, "put": 0}, {"small": 0, "large": 0, "put": 0}

    async def work(kind: str) -> None:
        now[kind] += 1
        most[kind] = max(most[kind], now[kind])
        for _ in range(3):
            await asyncio.sleep(0)
        now[kind] -= 1

    class Fetched:
        async def fetch(self, artifact: Artifact) -> Path:
            await work("small")
            return Path()

    class Counted(Delivery):
        async def _begin(self) -> None: ...

        async def _decode(self, artifact: Artifact, path: Path) -> None: ...

        async def _fetch(self, artifact: Artifact) -> None:
            await work("large")

        async def _put(self, artifact: Artifact) -> None:
            await work("put")

    nothing: Any = None
    fetched: Any = Fetched()
    small = Window(12, least=3, most=3 * SMALL_MOST)
    delivery = Counted(
        nothing, nothing, fetched, nothing, b"", nothing, nothing, concurrency=3, spool_bytes=1, small=small
    )
    window = artifacts(*[10] * 300, *[SMALL_BYTES + 1] * 20)
    await delivery._fetch_all(window)
    await delivery._put_all(window, keep=True)
    assert most == {"small": 3 * SMALL_MOST, "large": 3, "put": UPLOADS} and not any(now.values())


async def test_few_uploads_wait_for_the_end_of_their_window() -> None:
    """Each holds up to a part of its file in memory; a window may hold any number of files."""

    class Fetched:
        def part_of(self, artifact: Artifact) -> Path:
            return Path()

        async def fetch(self, artifact: Artifact, growing: Any = None) -> Path:
            return Path()

    class Early:
        growing = None

    class Publishing:
        put_with: list[bool] = []  # noqa: RUF012

        def upload_early(self, artifact: Artifact, path: Path) -> Early:
            return Early()

        async def put(self, artifact: Artifact, path: Path, early: Early | None) -> None:
            self.put_with.append(early is not None)

    class Undecoded(Delivery):
        async def _begin(self) -> None: ...

        async def _decode(self, artifact: Artifact, path: Path) -> None: ...

    nothing: Any = None
    fetched: Any = Fetched()
    fetched.path_of = fetched.part_of
    publishing: Any = Publishing()
    small = Window(12, least=3, most=3 * SMALL_MOST)
    delivery = Undecoded(
        nothing, nothing, fetched, publishing, b"", nothing, nothing, concurrency=3, spool_bytes=1, small=small
    )
    window = artifacts(*[SMALL_BYTES + 1] * 40)
    await delivery._fetch_all(window)
    assert len(delivery.early) == EARLY_MOST
    await delivery._put_all(window, keep=True)
    assert publishing.put_with.count(True) == EARLY_MOST and len(publishing.put_with) == 40 and not delivery.early
