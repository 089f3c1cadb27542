"""Options that change tokens travel with the media; those that could break a replica do not travel at all."""

from copy import deepcopy
from typing import Any

import pytest

from cosmos3_serve.reasoner.media.frame_options import OptionRefused
from cosmos3_serve.reasoner.media.options import put_frames, take_options, with_frames

SIZE = {"longest_edge": 10**6}
FLAT = "mm_processor_kwargs"
SCOPED, OTHER = f"{FLAT}.videos_kwargs", f"{FLAT}.images_kwargs"


def test_options_go_with_their_kind_and_frame_options_leave_the_body() -> None:
    body = {
        "mm_processor_kwargs": {
            "fps": 1.5, "max_pixels": 10**6, "cap_pixels_per_frame": True,
            "videos_kwargs": {"max_frames": 8, "min_pixels": 9}, "images_kwargs": {"size": {"longest_edge": 5}},
        },
        "media_io_kwargs": {
            "video": {"fps": 1.5, "num_frames": -1}, "image": {"rgba_background_color": [0, 0, 0]},
        },
        "temperature": 0,
    }  # fmt: skip
    options = take_options(body)
    videos = {"size": {"shortest_edge": 9, "longest_edge": 10**6}, "cap_pixels_per_frame": True}
    images = {"size": {"longest_edge": 5}}
    colour = {"rgba_background_color": [0, 0, 0]}
    assert options.by_kind == {
        "video": {"mm_processor_kwargs": {"videos_kwargs": videos}},
        "image": {"mm_processor_kwargs": {"images_kwargs": images}, "media_io_kwargs": colour},
    }
    assert options.frames is not None
    assert (options.frames.fps, options.frames.num_frames, options.frames.max_frames) == (1.5, None, 8)
    assert body == {
        "mm_processor_kwargs": {"videos_kwargs": videos, "images_kwargs": images},
        "media_io_kwargs": {"image": colour},
        "temperature": 0,
    }


@pytest.mark.parametrize(
    ("kwargs", "fields"),
    [
        ({"max_pixels": 5, "size": {"longest_edge": 6}}, (".max_pixels", ".size.longest_edge")),
        ({"min_pixels": 5, "max_pixels": 4}, (".min_pixels", ".max_pixels")),
        ({"min_pixels": 5, "videos_kwargs": {"max_pixels": 4}}, (".min_pixels", ".videos_kwargs.max_pixels")),
        (
            {"images_kwargs": {"size": {"shortest_edge": 5, "longest_edge": 4}}},
            (".images_kwargs.size.shortest_edge", ".images_kwargs.size.longest_edge"),
        ),
    ],
)
def test_pixel_budgets_that_contradict_each_other_are_both_named(kwargs: Any, fields: tuple[str, ...]) -> None:
    with pytest.raises(OptionRefused) as caught:
        take_options({"mm_processor_kwargs": kwargs})
    assert caught.value.fields == tuple(f"mm_processor_kwargs{field}" for field in fields)


@pytest.mark.parametrize(
    "body",
    [{}, {"mm_processor_kwargs": None, "media_io_kwargs": {}}, {"media_io_kwargs": {"video": None, "image": {}}}],
)
def test_nothing_asked_for_is_nothing_sent(body: dict[str, Any]) -> None:
    options = take_options(body)
    assert (options.by_kind, options.frames, body) == ({"video": {}, "image": {}}, None, {})
    options.check_used(())
    put_frames(body, {})
    assert body == {}


def test_chosen_frames_come_as_the_loader_s_options_and_are_not_sampled_again() -> None:
    body = {"mm_processor_kwargs": {"num_frames": 8, "videos_kwargs": {"size": SIZE}}}
    options = take_options(body)
    loading = {"min_frames": 8, "max_frames": 8}
    kwargs = {"videos_kwargs": {"size": SIZE, "do_sample_frames": False}}
    put_frames(body, loading)
    assert body == {"mm_processor_kwargs": kwargs, "media_io_kwargs": {"video": loading}}
    assert with_frames(options.by_kind["video"], loading) == {"mm_processor_kwargs": kwargs, "media_io_kwargs": loading}
    assert options.by_kind["video"] == {"mm_processor_kwargs": {"videos_kwargs": {"size": SIZE}}}


def test_the_model_family_s_own_example_is_taken() -> None:
    body = {
        "mm_processor_kwargs": {"fps": 2, "do_sample_frames": True},
        "media_io_kwargs": {"video": {"num_frames": -1}},
    }
    options = take_options(body)
    assert options.frames is not None
    assert (options.frames.fps, options.frames.num_frames, body) == (2, None, {})
    alone = take_options({"mm_processor_kwargs": {"videos_kwargs": {"do_sample_frames": True}}})
    assert (alone.frames, alone.by_kind["video"]) == (None, {})


@pytest.mark.parametrize(
    ("body", "kinds", "field"),
    [
        ({"mm_processor_kwargs": {"fps": 1}}, {"image"}, "mm_processor_kwargs.fps"),
        ({"mm_processor_kwargs": {"fps": 1}}, set(), "mm_processor_kwargs.fps"),
        ({"mm_processor_kwargs": {"cap_pixels_per_frame": False}}, {"image"}, f"{FLAT}.cap_pixels_per_frame"),
        ({"mm_processor_kwargs": {"max_pixels": 9}}, set(), "mm_processor_kwargs.max_pixels"),
        ({"mm_processor_kwargs": {"videos_kwargs": {"max_pixels": 9}}}, {"image"}, f"{SCOPED}.max_pixels"),
        ({"media_io_kwargs": {"video": {"num_frames": -1}}}, {"image"}, "media_io_kwargs.video.num_frames"),
        ({"mm_processor_kwargs": {"images_kwargs": {"size": SIZE}}}, {"video"}, f"{OTHER}.size"),
        (
            {"media_io_kwargs": {"image": {"rgba_background_color": [0, 0, 0]}}},
            {"video"},
            "media_io_kwargs.image.rgba_background_color",
        ),
    ],
)  # fmt: skip
def test_an_option_that_nothing_heeds_is_named(body: dict[str, Any], kinds: Any, field: str) -> None:
    options = take_options(deepcopy(body))
    with pytest.raises(OptionRefused) as caught:
        options.check_used(kinds)
    assert caught.value.fields == (field,)
    options.check_used({"image", "video"})


@pytest.mark.parametrize(
    ("kwargs", "field"),
    [
        ({"patch_size": 1}, ".patch_size"),
        ({"do_resize": False}, ".do_resize"),
        ({"do_sample_frames": False}, ".do_sample_frames"),
        ({"images_kwargs": {"do_sample_frames": True}}, ".images_kwargs.do_sample_frames"),
        ({"fps": [2.0, 2.0]}, ".fps"),
        ({"fps": "2"}, ".fps"),
        ({"fps": float("inf")}, ".fps"),
        ({"fps": 31}, ".fps"),
        ({"num_frames": 10**6}, ".num_frames"),
        ({"num_frames": True}, ".num_frames"),
        ({"num_frames": 1}, ".num_frames"),
        ({"num_frames": -1}, ".num_frames"),
        ({"max_frames": 1}, ".max_frames"),
        ({"min_frames": 769}, ".min_frames"),
        ({"min_pixels": 10**9}, ".min_pixels"),
        ({"size": {"shortest_edge": 10**9}}, ".size.shortest_edge"),
        ({"size": {"height": 10}}, ".size.height"),
        ({"size": 5}, ".size"),
        ({"max_video_tokens": 64}, ".max_video_tokens"),
        ({"videos_kwargs": {"videos_kwargs": {}}}, ".videos_kwargs.videos_kwargs"),
        ({"videos_kwargs": {"patch_size": 1}}, ".videos_kwargs.patch_size"),
        ({"images_kwargs": {"fps": 1}}, ".images_kwargs.fps"),
        ({"images_kwargs": 3}, ".images_kwargs"),
        (3, ""),
    ],
)
def test_processor_options_that_are_refused(kwargs: Any, field: str) -> None:
    with pytest.raises(OptionRefused) as caught:
        take_options({"mm_processor_kwargs": kwargs})
    error = caught.value.as_error("")
    assert (error.status, error.stable_code) == (400, "media_option_invalid")
    assert [found.field for found in error.errors] == [f"mm_processor_kwargs{field}"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"video": {"backend": "other"}}, ".video.backend"),
        ({"video": {"device": "cuda"}}, ".video.device"),
        ({"video": {"frames_indices": [0]}}, ".video.frames_indices"),
        ({"video": {"fps": 0}}, ".video.fps"),
        ({"video": {"fps": True}}, ".video.fps"),
        ({"video": {"num_frames": 1.5}}, ".video.num_frames"),
        ({"video": {"num_frames": 0}}, ".video.num_frames"),
        ({"video": {"max_frames": 10**9}}, ".video.max_frames"),
        ({"image": {"image_mode": "F"}}, ".image.image_mode"),
        ({"image": {"rgba_background_color": [0, 0, 300]}}, ".image.rgba_background_color"),
        ({"audio": {}}, ".audio"),
        ({"video": 3}, ".video"),
        (7, ""),
    ],
)
def test_loading_options_that_are_refused(given: Any, field: str) -> None:
    with pytest.raises(OptionRefused) as caught:
        take_options({"media_io_kwargs": given})
    assert (caught.value.status, caught.value.code) == (400, "media_option_invalid")
    assert caught.value.fields == (f"media_io_kwargs{field}",)
