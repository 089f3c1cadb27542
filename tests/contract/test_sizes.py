import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos3_serve.contract.sizes import SIZES, AspectRatio, Resolution, latent_frames, round_frames, size_of


@pytest.mark.parametrize(
    ("frames", "rounded"), [(1, 1), (2, 5), (5, 5), (6, 9), (9, 9), (24, 25), (100, 101), (189, 189)]
)
def test_frames_round_up(frames, rounded):
    assert round_frames(frames) == rounded


@given(st.integers(1, 10**6))
def test_rounding_gives_the_next_4k_plus_1(frames):
    rounded = round_frames(frames)
    assert rounded % 4 == 1
    assert frames <= rounded < frames + 4
    assert round_frames(rounded) == rounded
    assert latent_frames(rounded) * 4 - 3 == rounded


def test_every_wire_resolution_and_ratio_has_a_size():
    for resolution in Resolution:
        for ratio in AspectRatio:
            width, height = size_of(resolution, ratio)
            across, down = map(int, ratio.split(","))
            assert width % 8 == height % 8 == 0
            assert (width > height) == (across > down)


@pytest.mark.parametrize(
    ("resolution", "ratio", "size"),
    [
        ("256", "16,9", (320, 192)),
        ("720", "16,9", (1280, 720)),
        ("720", "1,1", (960, 960)),
        ("704", "4,3", (1088, 832)),
        ("1080", "9,16", (1080, 1920)),
        (None, "1,1", None),
        ("256", None, None),
        ("512", "1,1", None),
    ],
)
def test_table(resolution, ratio, size):
    assert size_of(resolution, ratio) == size


def test_portrait_is_landscape_turned():
    for sizes in SIZES.values():
        assert sizes["16,9"] == sizes["9,16"][::-1]
        assert sizes["4,3"] == sizes["3,4"][::-1]
