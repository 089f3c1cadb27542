"""Options that change tokens travel with the media; those that could break a replica do not travel at all."""

from typing import Any

import pytest

from cosmos3_serve.media.refusal import Refused
from cosmos3_serve.reasoner.media.options import processing_options


def test_options_go_with_their_kind() -> None:
    options = processing_options(
        {
            "mm_processor_kwargs": {"fps": 1.5, "size": {"longest_edge": 10**6}, "videos_kwargs": {"num_frames": 8}},
            "media_io_kwargs": {"video": {"fps": 4, "num_frames": -1}, "image": {"rgba_background_color": [0, 0, 0]}},
            "temperature": 0,
        }
    )
    shared = {"fps": 1.5, "size": {"longest_edge": 10**6}, "videos_kwargs": {"num_frames": 8}}
    assert options["video"] == {"mm_processor_kwargs": shared, "media_io_kwargs": {"fps": 4, "num_frames": -1}}
    assert options["image"] == {
        "mm_processor_kwargs": shared,
        "media_io_kwargs": {"rgba_background_color": [0, 0, 0]},
    }
    assert processing_options({}) == {"video": {}, "image": {}}
    assert processing_options({"mm_processor_kwargs": None, "media_io_kwargs": {}}) == {"video": {}, "image": {}}


@pytest.mark.parametrize(
    "kwargs",
    [
        {"patch_size": 1},
        {"do_resize": False},
        {"do_sample_frames": True},
        {"fps": [2.0, 2.0]},
        {"fps": "2"},
        {"fps": float("inf")},
        {"fps": 1000},
        {"num_frames": 10**6},
        {"num_frames": True},
        {"min_pixels": 10**9},
        {"size": {"shortest_edge": 10**9}},
        {"size": {"height": 10}},
        {"size": 5},
        {"max_video_tokens": 10**6},
        {"videos_kwargs": {"videos_kwargs": {}}},
        {"videos_kwargs": {"patch_size": 1}},
        {"images_kwargs": 3},
    ],
)
def test_processor_options_that_are_refused(kwargs: Any) -> None:
    with pytest.raises(Refused) as caught:
        processing_options({"mm_processor_kwargs": kwargs})
    assert (caught.value.status, caught.value.code) == (400, "media_option_invalid")


@pytest.mark.parametrize(
    "given",
    [
        {"video": {"backend": "other"}},
        {"video": {"device": "cuda"}},
        {"video": {"frames_indices": [0]}},
        {"video": {"fps": 0}},
        {"video": {"fps": True}},
        {"video": {"num_frames": 1.5}},
        {"video": {"max_frames": 10**9}},
        {"image": {"image_mode": "F"}},
        {"image": {"rgba_background_color": [0, 0, 300]}},
        {"audio": {}},
        {"video": 3},
        7,
    ],
)
def test_loading_options_that_are_refused(given: Any) -> None:
    with pytest.raises(Refused) as caught:
        processing_options({"media_io_kwargs": given})
    assert (caught.value.status, caught.value.code) == (400, "media_option_invalid")
