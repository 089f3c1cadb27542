"""The frames and tokens told by `explain` are those that the replica's own loader and processor gave."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.sampling import VideoProcessor, frame_indices, resized, sample_video, spread

MEASURED = json.loads((Path(__file__).parent / "sampling_cases.json").read_text())


def info(frames: int, fps: float, width: int, height: int, duration_s: float | None = None) -> MediaInfo:
    return MediaInfo(
        "video", "video/mp4", "mp4", "h264", "yuv420p", width, height, frames, fps, duration_s or frames / fps, 1,
        replica_frames=frames,
    )  # fmt: skip


def ends(values: list[Any], keep: int) -> list[Any]:
    return values if len(values) <= 2 * keep else values[:keep] + values[-keep:]


@pytest.fixture
def processor(tmp_path: Path) -> VideoProcessor:
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(MEASURED["processor"]))
    return VideoProcessor.load(tmp_path)


@pytest.mark.parametrize("case", MEASURED["cases"], ids=lambda c: f"{c['clip']}-{json.dumps(c['options'])[:40]}")
def test_as_measured_on_the_real_loader_and_processor(processor: VideoProcessor, case: dict[str, Any]) -> None:
    clip = info(case["frames"], case["fps"], case["width"], case["height"], case["duration_s"])
    found = sample_video(clip, processor, case["options"])
    assert case["frames"] == case["loader_frames"], "the gate counts frames as the loader does"
    assert case["fps"] == pytest.approx(case["loader_fps"], rel=1e-5)
    assert len(found.indices) == case["count"]
    assert ends(list(found.indices), 12) == case["indices"]
    assert ends(list(found.timestamps_s), 6) == pytest.approx(case["timestamps_s"], abs=1e-3)
    assert [found.width, found.height] == case["resized"]
    assert found.tokens == case["tokens"]
    assert found.patch_bytes == case["patch_bytes"]


def test_a_frame_that_the_loader_cannot_read_is_not_told(processor: VideoProcessor) -> None:
    """As seen: 120 counted, 119 there, 10 asked for, 9 used."""
    clip = dataclasses.replace(info(119, 24, 160, 96), replica_frames=120)
    assert sample_video(clip, processor, {}).indices == (0, 13, 26, 40, 53, 66, 79, 93, 106)


def test_what_explain_shows(processor: VideoProcessor) -> None:
    shown = sample_video(info(60, 2, 640, 360), processor, {}).as_dict()
    assert set(shown) == {"indices", "timestamps_s", "sampled_fps", "width", "height", "tokens"}
    assert shown["sampled_fps"] == 2
    assert (shown["width"], shown["height"], shown["tokens"]) == (640, 352, 6600)
    json.dumps(shown)


@given(st.integers(2, 5000), st.floats(0.5, 120), st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 768))
def test_indices_and_sizes_stay_in_bounds(frames: int, fps: float, width: int, height: int, most: int) -> None:
    model = VideoProcessor()
    indices = frame_indices(frames, fps, model, {"media_io_kwargs": {"max_frames": most}})
    assert indices == sorted(set(indices))
    assert 0 <= indices[0] <= indices[-1] < frames
    assert len(indices) <= min(most, frames)
    if max(width, height) <= 190 * min(width, height):
        tall, wide = resized(len(indices), height, width, model, {})
        assert tall % 32 == wide % 32 == 0
        assert tall >= 32 <= wide


@pytest.mark.parametrize(("total", "count"), [(10, 1), (10, 10), (900, 60), (7, 3), (768, 767)])
def test_spread_keeps_both_ends(total: int, count: int) -> None:
    indices = spread(total, count)
    assert len(indices) == count
    assert indices[0] == 0
    assert count == 1 or indices[-1] == total - 1


@pytest.mark.parametrize("size", [(4000, 10), (0, 10)])
def test_sizes_that_the_processor_refuses(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"200|pixels"):
        sample_video(info(10, 5, *size), VideoProcessor(), {})
