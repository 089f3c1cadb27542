import pytest

from cosmos3_serve.contract.modes import ACTION_DOMAINS, ModelMode, implicit_mode, is_image_category, suffix_of


def test_ten_modes_and_eighteen_domains():
    assert len(ModelMode) == 10
    assert len(ACTION_DOMAINS) == 18
    assert not {"libero", "hand_pose", "no_action"} & set(ACTION_DOMAINS)


@pytest.mark.parametrize(
    ("suffix", "frames", "mode"),
    [
        (None, 1, "text2image"),
        (None, None, "text2video"),
        (None, 25, "text2video"),
        (".png", 1, "image2image"),
        (".jpg", 1, "image2image"),
        (".jpeg", None, "image2video"),
        (".webp", 9, "image2video"),
        (".mp4", None, "video2video"),
        (".mp4", 1, "video2image"),
    ],
)
def test_implicit_mode(suffix, frames, mode):
    assert implicit_mode(suffix, frames) == mode


@pytest.mark.parametrize("suffix", ["", ".gif", ".png?x", ".mov", ".PNG"])
def test_implicit_mode_refuses_other_extensions(suffix):
    with pytest.raises(ValueError, match="unknown media extension"):
        implicit_mode(suffix, 1)


@pytest.mark.parametrize(
    ("uri", "suffix"),
    [
        ("s3://b/a.PNG", ".png"),
        ("s3://b/a%2Epng", ".png"),
        ("s3://b/x%2Fy.mp4", ".mp4"),
        ("s3://b/a.png%2Fx", ""),
        ("s3://b/a%252Epng", ""),
        ("s3://b/.png", ""),
        ("s3://b/a.tar.gz", ".gz"),
        ("s3://b.png/a", ""),
        ("/staged/0.webp", ".webp"),
        ("/staged/a%2Epng", ""),
        ("s3://b/a.mp4 ", ".mp4"),
    ],
)
def test_suffix_is_that_of_the_decoded_key(uri, suffix):
    assert suffix_of(uri) == suffix


@pytest.mark.parametrize(
    ("frames", "hints", "mode", "image"),
    [
        (1, (), "text2video", True),
        (5, (), "text2image", False),
        (None, (), "text2image", True),
        (None, (), "image2image", True),
        (None, (), "reasoner", True),
        (None, (), "text2video", False),
        (None, (), "wam", False),
        (None, ("wsm",), "text2image", False),
        (1, ("wsm",), "text2video", True),
        (None, ("edge", "wsm"), "text2image", True),
        (None, ("edge",), "text2image", True),
    ],
)
def test_image_category(frames, hints, mode, image):
    assert is_image_category(frames, hints, mode) is image
