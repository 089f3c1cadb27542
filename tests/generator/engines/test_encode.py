"""What is written can be read back, is the same each time, and is there whole or not at all."""

import os
import shutil
import subprocess

import av
import numpy as np
import pytest
from PIL import Image
from support.media import frames, picture

from cosmos3_serve.generator.engines.encode import write_jpeg, write_mp4, write_text


def probe(path):
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        return stream.codec_context.name, stream.codec_context.pix_fmt, float(stream.average_rate), np.stack(decoded)


def test_jpeg(tmp_path):
    write_jpeg(tmp_path / "a.jpg", picture(64, 48), 95)
    with Image.open(tmp_path / "a.jpg") as image:
        assert (image.format, image.size) == ("JPEG", (64, 48))
        assert np.abs(np.asarray(image).astype(int) - picture(64, 48)).mean() < 5
    write_jpeg(tmp_path / "b.jpg", picture(64, 48), 20)
    assert (tmp_path / "b.jpg").stat().st_size < (tmp_path / "a.jpg").stat().st_size
    for quality in (0, 100):
        write_jpeg(tmp_path / "c.jpg", picture(64, 48), quality)


def test_mp4(tmp_path):
    write_mp4(tmp_path / "a.mp4", frames(6, 64, 48), 10, 10)
    codec, pixels, fps, decoded = probe(tmp_path / "a.mp4")
    assert (codec, pixels, fps, decoded.shape) == ("h264", "yuv420p", 10.0, (6, 48, 64, 3))
    assert np.abs(decoded.astype(int) - frames(6, 64, 48)).mean() < 8


@pytest.mark.parametrize("width, height, shape", [(33, 48, (48, 34)), (64, 31, (32, 64)), (17, 17, (18, 18))])
def test_odd_sides_repeat_their_last_row(tmp_path, width, height, shape):
    write_mp4(
        tmp_path / "a.mp4",
        frames(2, width, height) if height > 30 else np.zeros((2, height, width, 3), np.uint8),
        24,
        10,
    )
    assert probe(tmp_path / "a.mp4")[3].shape == (2, *shape, 3)


@pytest.mark.parametrize("quality", [0, 5, 10])
def test_each_quality_encodes_the_same_bytes_again(tmp_path, quality):
    for name in ("a.mp4", "b.mp4"):
        write_mp4(tmp_path / name, frames(9, 320, 192), 24, quality)
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()


def test_quality_is_that_of_imageio(tmp_path):
    import imageio.v2 as imageio

    for quality in (3, 10):
        write_mp4(tmp_path / "ours.mp4", frames(6, 64, 48), 24, quality)
        imageio.mimsave(
            tmp_path / "theirs.mp4", list(frames(6, 64, 48)), format="FFMPEG", fps=24, quality=quality,
            macro_block_size=1, output_params=["-threads", "4"],
        )  # fmt: skip
        assert (tmp_path / "ours.mp4").read_bytes() == (tmp_path / "theirs.mp4").read_bytes()


def test_failure_leaves_the_old_file_and_no_part(tmp_path):
    write_text(tmp_path / "a.mp4", "old")
    with pytest.raises(Exception):  # noqa: B017 - whatever the encoder makes of it
        write_mp4(tmp_path / "a.mp4", np.zeros((2, 8, 8, 7), np.uint8), 24, 10)
    with pytest.raises(OSError):
        write_text(tmp_path / "no" / "a.txt", "x")
    assert (tmp_path / "a.mp4").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]


def test_files_are_readable_by_others(tmp_path):
    write_jpeg(tmp_path / "a.jpg", picture(16, 40), 95)
    assert (tmp_path / "a.jpg").stat().st_mode & 0o777 == 0o644


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="needs root, to mount a small file system")
def test_a_full_disk_is_told_in_words(tmp_path):
    """A real one of one mebibyte; the encoder is another process, whose error says nothing."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)], check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    noise = np.random.default_rng(0).integers(0, 255, (24, 256, 256, 3), np.uint8)
    try:
        with pytest.raises(OSError, match="No space left on device"):
            write_mp4(small / "a.mp4", noise, 24, 10)
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)
