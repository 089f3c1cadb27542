from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from cosmos3_serve.storage import files


async def test_a_cancelled_call_is_waited_for() -> None:
    """Else the thread would go on writing to a descriptor that its caller has closed."""
    started, release, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        release.wait(10)
        done.set()

    task = asyncio.create_task(files.in_thread(work))
    await asyncio.to_thread(started.wait, 10)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()


async def test_the_result_and_the_exception_come_through() -> None:
    assert await files.in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await files.in_thread(divmod, 7, 0)


def test_parts_are_hidden_fresh_siblings(tmp_path: Path) -> None:
    one, two = files.part_of(tmp_path / "k"), files.part_of(tmp_path / "k")
    assert one != two and one.parent == tmp_path
    assert files.is_part(one.name) and not files.is_part("k.part") and not files.is_part(".part")
    handle = files.create_part(one)
    files.write_all(handle, b"data")
    with pytest.raises(FileExistsError):
        files.create_part(one)
    files.publish_new(one, tmp_path / "k")
    assert (tmp_path / "k").read_bytes() == b"data" and not one.exists()


@pytest.mark.parametrize("number", [None, errno.EXDEV, errno.ENOSYS, errno.EINVAL])
def test_a_file_is_copied_in_the_kernel_or_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    data = os.urandom(3 * files.COPY_BYTES + 5)
    (tmp_path / "source").write_bytes(data)

    def refuse(*_: object) -> int:
        raise OSError(number, "no copying here")

    if number:
        monkeypatch.setattr(os, "copy_file_range", refuse)
    source = os.open(tmp_path / "source", os.O_RDONLY)
    target = files.create_part(tmp_path / "target")
    while count := files.copy_some(source, target, files.COPY_BYTES + 1):
        assert count <= files.COPY_BYTES + 1
    os.close(source)
    os.close(target)
    assert (tmp_path / "target").read_bytes() == data
