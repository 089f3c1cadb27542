import pytest

from cosmos3_serve.contract import wire


@pytest.mark.parametrize("name", ["a", "A9", "a..b", "CON", "inputs", "0", "a" * 128, "a-b_c.d"])
def test_safe_names(name):
    assert wire.is_safe_name(name)


@pytest.mark.parametrize("name", ["", ".a", "-a", "_a", "a" * 129, "a\n", "a b", "a/b", "é", "a\x00", " a", "１"])
def test_unsafe_names(name):
    assert not wire.is_safe_name(name)


def test_media_extension_follows_the_frame_count():
    assert (wire.vision_file(1), wire.vision_file(5)) == ("vision.jpg", "vision.mp4")
    assert (wire.control_file("edge", 1), wire.control_file("seg", 9)) == ("control_edge.jpg", "control_seg.mp4")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("r/s/vision.jpg", None),
        ("r/s/deeper/x.bin", None),
        ("r/s", "fewer"),
        ("r", "fewer"),
        ("r/other/vision.jpg", "outside"),
        ("q/s/vision.jpg", "outside"),
        ("/r/s/vision.jpg", "outside"),
        ("r/s/../vision.jpg", "safe name"),
        ("r/s//vision.jpg", "safe name"),
        ("r/s/.hidden", "safe name"),
        ("r/s/a b", "safe name"),
    ],
)
def test_artifact_paths(path, said):
    problem = wire.artifact_problem(path, "r", "s")
    assert problem is None if said is None else said in problem
