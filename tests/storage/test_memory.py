"""Bounded memory, proved on a large object in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.s3 import LocalS3

SIZE = 300 * 1024 * 1024
ALLOWED = 100 * 1024 * 1024  # of growth; the object is three times that

SCRIPT = """
import asyncio, json, re, sys
from pathlib import Path
from cosmos3_serve.storage.location import open_store

def peak():  # of this program alone: ru_maxrss would start at the parent's
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

async def main(location, folder):
    place = open_store(location)
    await place.store.put_bytes(place.key("warm"), b"x")
    before = peak()
    await place.store.put_file(place.key("big"), folder / "big")
    done = await place.store.download(place.key("big"), folder / "copy", max_bytes=2**31)
    size, sha256 = await place.store.hash_object(place.key("big"))
    after = peak()
    same = (size, sha256) == (done.size, done.sha256)
    print(json.dumps({"grown": after - before, "same": same, "size": size}))

asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
"""


@pytest.mark.slow
def test_a_large_object_is_never_in_memory(s3: LocalS3, tmp_path: Path) -> None:
    s3.create_bucket("large")
    with (tmp_path / "big").open("wb") as big:
        block = os.urandom(1024 * 1024)
        for _ in range(SIZE // len(block)):
            big.write(block)
    for location in ("s3://large/out", str(tmp_path / "out")):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, location, str(tmp_path)],
            env={**os.environ, **s3.environ}, capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        said = json.loads(done.stdout)
        assert said["size"] == SIZE and said["same"]
        assert said["grown"] < ALLOWED, said
        (tmp_path / "copy").unlink()
