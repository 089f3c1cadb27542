"""What a client asks of a video's frames is obeyed exactly, or refused with the field, the limit and what to send."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cosmos3_serve.reasoner.media.frame_options import FrameOptions, FrameRule, OptionRefused
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.options import with_frames
from cosmos3_serve.reasoner.media.sampling import VideoProcessor, sample_video

LOADER, FLAT, SCOPED = "media_io_kwargs.video", "mm_processor_kwargs", "mm_processor_kwargs.videos_kwargs"


def info(frames: int, fps: float) -> MediaInfo:
    return MediaInfo(
        "video", "video/mp4", "mp4", "h264", "yuv420p", 160, 96, frames, fps, frames / fps, 1, replica_frames=frames
    )


def resolve(**places: dict[str, Any]) -> FrameOptions:
    names = {"loader": LOADER, "scoped": SCOPED, "flat": FLAT}
    found = FrameOptions.resolve((names[name], options) for name, options in places.items())
    assert found is not None
    return found


def used(options: FrameOptions, clip: MediaInfo) -> tuple[int, ...]:
    rule = options.rule(clip)
    sent = with_frames({}, rule.as_options())
    indices = sample_video(clip, VideoProcessor(), sent).indices
    assert len(indices) == rule.count(clip)
    options.check_obeyed(rule, len(indices), clip)
    return indices


def refusal(options: FrameOptions, clip: MediaInfo) -> OptionRefused:
    with pytest.raises(OptionRefused) as caught:
        options.rule(clip)
    assert (caught.value.status, caught.value.code) == (400, "media_option_invalid")
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize(
    ("asked", "frames", "fps", "count"),
    [
        ({"num_frames": 2}, 64, 25, 2),
        ({"num_frames": 64}, 64, 25, 64),  # each frame: the processor must not choose once more
        ({"num_frames": 63}, 64, 25, 63),
        ({"num_frames": 2}, 2, 2, 2),
        ({"fps": 1}, 50, 25, 2),
        ({"fps": 2}, 50, 25, 4),
        ({"fps": 1.99}, 50, 25, 3),
        ({"fps": 25}, 50, 25, 50),
        ({"fps": 30}, 299, 30_000 / 1_001, 299),
        ({"fps": 30}, 3_000, 30_000 / 1_001, 768),  # and max_frames, below
        ({"max_frames": 3}, 64, 25, 3),
        ({"max_frames": 768}, 64, 25, 5),
        ({"min_frames": 20}, 64, 25, 20),
        ({"min_frames": 1}, 10, 25, 2),
        ({"fps": 10, "max_frames": 12}, 64, 25, 12),
        ({"fps": 0.5, "min_frames": 8}, 64, 25, 8),
        ({"min_frames": 6, "max_frames": 6}, 64, 25, 6),
        ({"num_frames": -1}, 64, 25, 64),
        ({"num_frames": -1, "max_frames": 16}, 1_000, 25, 16),
        ({"num_frames": -1, "fps": 5}, 50, 25, 10),
        ({"num_frames": 8, "max_frames": 16, "min_frames": 4}, 64, 25, 8),
    ],
)
def test_what_is_asked_for_is_used(asked: dict[str, Any], frames: int, fps: float, count: int) -> None:
    clip = info(frames, fps)
    if frames == 3_000:
        assert refusal(resolve(loader=asked), clip).fields == (f"{LOADER}.fps",)
        asked = {**asked, "max_frames": 768}
    for place in ("loader", "flat", "scoped"):
        indices = used(resolve(**{place: asked}), clip)
        assert len(indices) == count
        assert (indices[0], indices[-1]) == (0, frames - 1)


@pytest.mark.parametrize(
    ("asked", "frames", "fps", "field", "words"),
    [
        ({"num_frames": 65}, 64, 25, "num_frames", "64 frames"),
        ({"num_frames": 3}, 2, 2, "num_frames", "2 frames"),
        ({"min_frames": 65}, 64, 25, "min_frames", "64 frames"),
        ({"fps": 26}, 64, 25, "fps", "25 frames a second"),
        ({"fps": 30}, 2, 2, "fps", "2 frames a second"),
        ({"fps": 0.5}, 50, 25, "fps", "1 frame(s)"),
        ({"fps": 0.01}, 64, 25, "fps", "0 frame(s)"),
        ({"fps": 30}, 1_000, 30, "fps", "1000 frames"),
        ({"num_frames": -1}, 1_000, 25, "num_frames", "768"),
    ],
)
def test_what_the_clip_cannot_give_is_refused(
    asked: dict[str, Any], frames: int, fps: float, field: str, words: str
) -> None:
    refused = refusal(resolve(flat=asked), info(frames, fps))
    assert refused.fields == (f"{FLAT}.{field}",)
    assert words in refused.message
    error = refused.as_error("messages[0].content[1]")
    assert error.detail.startswith("messages[0].content[1]: ")
    assert [found.field for found in error.errors] == [f"{FLAT}.{field}"]


@pytest.mark.parametrize(("frames", "fps"), [(64, 25.0), (50, 25.0), (1_000, 30.0), (31, 30_000 / 1_001)])
def test_a_remedy_s_number_is_taken(frames: int, fps: float) -> None:
    clip = info(frames, fps)
    for asked in ({"fps": 0.001}, {"fps": 30}, {"num_frames": 768}, {"min_frames": 768}):
        try:
            resolve(flat=asked).rule(clip)
        except OptionRefused as refused:
            (name,) = asked
            limit = refused.remedy.partition("least ")[2] or refused.remedy.partition("most ")[2]
            number = float(limit.split(",")[0])
            used(resolve(flat={name: number if name == "fps" else int(number)}), clip)


@pytest.mark.parametrize(
    ("places", "fields"),
    [
        ({"loader": {"fps": 2}, "flat": {"fps": 3}}, (f"{LOADER}.fps", f"{FLAT}.fps")),
        ({"scoped": {"num_frames": 2}, "flat": {"num_frames": 3}}, (f"{SCOPED}.num_frames", f"{FLAT}.num_frames")),
        ({"loader": {"num_frames": 8}, "flat": {"fps": 3}}, (f"{LOADER}.num_frames", f"{FLAT}.fps")),
        ({"loader": {"min_frames": 8}, "scoped": {"max_frames": 4}}, (f"{LOADER}.min_frames", f"{SCOPED}.max_frames")),
        ({"flat": {"num_frames": 8, "max_frames": 4}}, (f"{FLAT}.num_frames", f"{FLAT}.max_frames")),
        ({"flat": {"num_frames": 8, "min_frames": 9}}, (f"{FLAT}.num_frames", f"{FLAT}.min_frames")),
    ],
)
def test_a_contradiction_names_both_fields(places: dict[str, Any], fields: tuple[str, ...]) -> None:
    with pytest.raises(OptionRefused) as caught:
        resolve(**places)
    assert caught.value.fields == fields
    assert [found.field for found in caught.value.as_error("").errors] == list(fields)


def test_the_same_in_two_places_is_no_contradiction() -> None:
    assert resolve(loader={"fps": 2}, flat={"fps": 2.0}).fps == 2
    assert resolve(loader={"num_frames": -1}, flat={"num_frames": 8}).num_frames == 8
    assert resolve(loader={"num_frames": -1}, flat={"fps": 4}).num_frames is None
    assert FrameOptions.resolve(((LOADER, {}), (FLAT, {"size": {}}))) is None


def test_a_last_frame_that_cannot_be_shown_is_not_counted() -> None:
    """The loader counts 120 frames where an edit list hides one, and goes without the last."""
    clip = replace(info(119, 24), replica_frames=120)
    options = resolve(flat={"num_frames": 10})
    rule = options.rule(clip)
    indices = sample_video(clip, VideoProcessor(), with_frames({}, rule.as_options())).indices
    with pytest.raises(OptionRefused) as caught:
        options.check_obeyed(rule, len(indices), clip)
    assert caught.value.fields == (f"{FLAT}.num_frames",)
    assert refusal(resolve(flat={"num_frames": 120}), clip).message.endswith("119 frames")


WHOLE = st.one_of(st.none(), st.integers(2, 768))


@given(st.integers(2, 3000), st.floats(0.5, 120), st.one_of(st.none(), st.floats(0.01, 30)), WHOLE, WHOLE, WHOLE)
def test_taken_is_obeyed(frames: int, rate: float, fps: float | None, number: Any, least: Any, most: Any) -> None:
    asked = {"fps": fps, "num_frames": number, "min_frames": least, "max_frames": most}
    clip = info(frames, rate)
    try:
        options = FrameOptions.resolve([(FLAT, asked)])
        assume(options is not None)
        indices = used(options, clip)  # type: ignore[arg-type]
    except OptionRefused:
        return
    count = len(indices)
    assert 2 <= count <= 768
    assert number in (None, count)
    assert (least or 2) <= count <= (most or 768)
    if fps is not None and least is None and most is None:
        assert count == min(int(frames / rate * fps), frames)


def test_the_rule_is_what_a_loader_reads() -> None:
    assert FrameRule(None, 8, 8).as_options() == {"min_frames": 8, "max_frames": 8}
    assert FrameRule(4, 2, 768).as_options() == {"fps": 4, "min_frames": 2, "max_frames": 768}
