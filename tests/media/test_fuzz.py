"""Cuts and flipped bits of the corpus, through the confined process: refused, or the right pictures; never a crash of
the caller, a hang or memory beyond the limit.

A cut that is read must give every frame of the whole file, bit for bit; of what is written without a length (live
streams, fragments, MPEG-TS) a cut between two pictures leaves a shorter stream, whose frames must be the first ones. A
flipped bit in coded pictures can't be seen in every codec: those without checksums turn some into other, equally valid
pictures. FFV1 and PNG have checksums, and must give the right pictures or none.
"""

import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from support.corpus.entry import Entry
from support.corpus.files import corpus

from cosmos3_serve.media.limits import ReadLimits
from cosmos3_serve.media.process import MediaReader
from cosmos3_serve.media.read import Media, Want
from cosmos3_serve.media.refusal import Refused

LIMITS = replace(ReadLimits(), timeout_s=60.0, memory_bytes=3 * 1024**3, max_frames=2000, max_video_pixels=10**9)
SEEN = [entry for entry in corpus() if not entry.refused]
ENDLESS = ("live", "fragment")
CHECKED = (".png", "ffv1.mkv", "ffv1.avi", "grey16.mkv", "alpha.mkv")


@pytest.fixture(scope="module")
def reader():
    reader = MediaReader(LIMITS)
    yield reader
    reader.close()


@pytest.fixture(scope="module")
def whole(reader, tmp_path_factory):
    """An entry's bytes and what is read of them."""
    folder = tmp_path_factory.mktemp("whole")

    @cache
    def made(name: str) -> tuple[bytes, Media]:
        entry = next(entry for entry in SEEN if entry.name == name)
        entry.make(folder / name)
        return (folder / name).read_bytes(), reader.read(folder / name, Want(entry.kind))

    return made


def damaged(data: bytes, chance: random.Random) -> tuple[bytes, str]:
    if chance.random() < 0.5:
        return data[: chance.randrange(1, len(data))], "cut"
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed), "flip"


def attempt(seed: int, reader: MediaReader, whole, folder: Path) -> None:
    chance = random.Random(seed)
    entry: Entry = chance.choice(SEEN)
    data, right = whole(entry.name)
    changed, how = damaged(data, chance)
    path = folder / entry.name
    path.write_bytes(changed)
    try:
        found = reader.read(path, Want(entry.kind))
    except Refused as refused:
        assert refused.code.startswith("media_") and refused.message, (seed, entry.name)
        return
    said = (seed, entry.name, how)
    assert found.frames.dtype == np.uint8 and found.frames.ndim == 4 and len(found.frames) == len(found.times_s), said
    same = found.frames.shape == right.frames.shape and np.array_equal(found.frames, right.frames)
    if how == "cut":
        assert same or ((entry.name.startswith(ENDLESS) or entry.name.endswith(".ts")) and _first(found, right)), said
    elif entry.name.endswith(CHECKED):
        assert same or _index_flipped(found, right), said


def _index_flipped(found: Media, right: Media) -> bool:
    """The pictures are right where they are; a flag, a size or a time of the container changed."""
    if found.record.conversions != right.record.conversions or found.record.tracks != right.record.tracks:
        return True
    return _first(found, right)


def _first(found: Media, right: Media) -> bool:
    count = min(len(found.frames), len(right.frames))
    alike = found.frames.shape[1:] == right.frames.shape[1:]
    return alike and np.array_equal(found.frames[:count], right.frames[:count])


@pytest.mark.parametrize("block", range(10))
def test_damage_is_refused_or_harmless(block: int, reader, whole, tmp_path: Path) -> None:
    for seed in range(block * 20, block * 20 + 20):
        attempt(seed, reader, whole, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_more_damage(block: int, reader, whole, tmp_path: Path) -> None:
    for seed in range(1000 + block * 100, 1000 + block * 100 + 100):
        attempt(seed, reader, whole, tmp_path)
