"""Ahead: what was read early is what would have been read in turn, once; bounded, and nothing stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import media

from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.engines.ahead import Ahead
from cosmos3_serve.generator.engines.inputs import LIMITS, Wanted
from cosmos3_serve.generator.engines.job import EngineJob
from cosmos3_serve.media.read import NoRoom, Want, read_media


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return media.write_all(tmp_path_factory.mktemp("media"))


def job(name: str = "a") -> EngineJob:
    return EngineJob(request_id="r", name=name, output_dir="/out/r/a", args={})


def test_the_same_frames_as_a_read_in_turn(files: dict[str, str]) -> None:
    ahead, mine = Ahead(), job()
    wanted = [
        Wanted(files["clip.mp4"], "vision_path", size=(320, 192), max_frames=5, keep="last"),
        Wanted(files["image.png"], "x", size=(64, 64)),
    ]
    ahead.load(mine, wanted)
    assert ahead.used_bytes == 5 * 320 * 192 * 3 + 64 * 64 * 3
    for one in wanted:
        early = ahead.taker(mine)(one)
        turn = read_media(Path(one.path), Want(None, one.size, one.max_frames, one.keep), LIMITS)
        assert np.array_equal(early.frames, turn.frames) and early.fps == turn.fps
    assert ahead.used_bytes == 0


def test_a_second_take_and_another_job_of_the_same_name_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (8, 8), (255, 0, 0)).save(path)
    ahead, mine, twin = Ahead(), job(), job()
    one = Wanted(str(path), "vision_path")
    ahead.load(mine, [one])
    Image.new("RGB", (8, 8), (0, 255, 0)).save(path)
    assert ahead.taker(twin)(one).frames[0, 0, 0].tolist() == [0, 255, 0]
    assert ahead.taker(mine)(one).frames[0, 0, 0].tolist() == [255, 0, 0]
    assert ahead.taker(mine)(one).frames[0, 0, 0].tolist() == [0, 255, 0]


def test_room_is_bounded_and_what_finds_none_is_read_in_its_turn(files: dict[str, str]) -> None:
    frame = 320 * 192 * 3
    ahead, first, second = Ahead(max_bytes=5 * frame), job("a"), job("b")
    one = Wanted(files["clip.mp4"], "vision_path", size=(320, 192), max_frames=4)
    ahead.load(first, [one])
    ahead.load(second, [one])
    assert ahead.used_bytes == 4 * frame
    assert len(ahead.taker(second)(one).frames) == 4, "read in its turn"
    assert ahead.used_bytes == 4 * frame
    ahead.drop(first)
    assert ahead.used_bytes == 0
    ahead.load(second, [one])
    assert ahead.used_bytes == 4 * frame
    with pytest.raises(NoRoom):
        one.read(room=4 * frame - 1)


def test_a_bad_file_is_told_in_its_turn(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"no video")
    ahead, mine = Ahead(), job()
    one = Wanted(str(path), "vision_path")
    ahead.load(mine, [one])
    with pytest.raises(SampleError, match="whatever it is called") as caught:
        ahead.taker(mine)(one)
    assert caught.value.sample_code is SampleCode.INPUT_INVALID


def test_what_comes_after_its_job_was_dropped_is_dropped_too(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (8, 8)).save(path)
    ahead, mine = Ahead(), job()

    class Late(Wanted):
        def read(self, room=None, cancelled=lambda: False):  # type: ignore[no-untyped-def]
            ahead.drop(mine)
            return super().read(room)

    ahead.load(mine, [Late(str(path), "vision_path")])
    assert ahead.used_bytes == 0 and not ahead._held
