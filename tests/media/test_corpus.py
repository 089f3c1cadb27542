"""The corpus through the room's reader, as the generator uses it: the right pictures, or a clear no."""

from pathlib import Path

import pytest
from support.corpus.entry import Entry
from support.corpus.files import corpus
from support.corpus.paint import near, number_of, patches_of

from cosmos3_serve.media.limits import ReadLimits
from cosmos3_serve.media.read import Want, read_media
from cosmos3_serve.media.refusal import Refused

CORPUS = corpus()
SEEN = [entry for entry in CORPUS if not entry.refused]


def named(entry: Entry) -> str:
    return entry.name


@pytest.mark.parametrize("entry", SEEN, ids=named)
def test_what_is_read_is_right(entry: Entry, tmp_path: Path) -> None:
    entry.make(tmp_path / entry.name)
    media = read_media(tmp_path / entry.name, Want(entry.kind), ReadLimits())
    assert [number_of(frame) for frame in media.frames] == list(entry.numbers)
    assert media.frames.shape[2:0:-1] == entry.size == (media.record.width, media.record.height)
    if entry.kind == "video":
        assert media.times_s == pytest.approx(entry.times, abs=0.002)
        assert media.record.start_s == pytest.approx(entry.start_s, abs=0.2)
    for frame in (media.frames[0], media.frames[-1]):
        left, right = patches_of(frame)
        assert near(left, entry.left, entry.by) and near(right, entry.right, entry.by), (left, right)
    assert entry.notes in " ".join(media.record.notes)
    assert entry.conversions in " ".join(media.record.conversions)


@pytest.mark.parametrize("entry", [entry for entry in CORPUS if entry.refused], ids=named)
def test_what_is_refused_says_why_and_what_to_do(entry: Entry, tmp_path: Path) -> None:
    entry.make(tmp_path / entry.name)
    for want in (Want(entry.kind), Want(entry.kind, max_frames=1), Want(entry.kind, max_frames=2, keep="last")):
        with pytest.raises(Refused) as caught:
            read_media(tmp_path / entry.name, want, ReadLimits())
        assert caught.value.code in entry.refused, caught.value
        assert entry.says in caught.value.message and caught.value.remedy
        assert str(tmp_path) not in caught.value.message + caught.value.remedy


@pytest.mark.parametrize("entry", [entry for entry in SEEN if len(entry.numbers) > 4], ids=named)
def test_either_end(entry: Entry, tmp_path: Path) -> None:
    entry.make(tmp_path / entry.name)
    last = read_media(tmp_path / entry.name, Want("video", max_frames=3, keep="last"), ReadLimits())
    assert [number_of(frame) for frame in last.frames] == list(entry.numbers)[-3:]
    assert last.times_s == pytest.approx(entry.times[-3:], abs=0.002)


def test_there_are_enough_of_them() -> None:
    assert len(CORPUS) >= 60 and len({entry.name for entry in CORPUS}) == len(CORPUS)
