"""Conditioning media: upright, cropped, bounded, and every kind of garbage refused by field."""

import struct
import zlib
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image
from support.media import frames, picture, write_video

from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.engines import media
from cosmos3_serve.generator.engines.media import cover, read_image, read_media


def refused(path: Path, **options) -> str:
    with pytest.raises(SampleError) as caught:
        read_media(path, "vision_path", **options)
    assert caught.value.sample_code is SampleCode.INPUT_INVALID
    assert caught.value.detail.startswith("vision_path: ")
    assert str(path) not in caught.value.detail
    return caught.value.detail


# ---- images ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".jpeg", ".webp", ".PNG"])
def test_still_image_is_a_clip_of_one_frame(tmp_path, suffix):
    Image.fromarray(picture(64, 48)).save(tmp_path / f"a{suffix}")
    clip = read_media(tmp_path / f"a{suffix}", "vision_path")
    assert clip.frames.shape == (1, 48, 64, 3) and clip.frames.dtype == np.uint8
    assert clip.fps == 1.0


def test_exif_rotation_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side
    Image.fromarray(picture(64, 32)).save(tmp_path / "a.jpg", exif=exif, quality=95)
    assert read_image(tmp_path / "a.jpg", "x").size == (32, 64)


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "I;16", "1"])
def test_every_colour_mode_becomes_rgb(tmp_path, mode):
    array = np.zeros((8, 8), np.uint16)
    image = Image.fromarray(array) if mode == "I;16" else Image.new(mode, (8, 8))
    image.save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", "x").mode == "RGB"


def test_cover_crops_the_centre_without_distortion():
    image = Image.fromarray(picture(400, 200))
    covered = cover(image, 100, 100, "x")
    assert covered.size == (100, 100)
    direct = image.resize((200, 100), Image.Resampling.BILINEAR).crop((50, 0, 150, 100))
    assert np.array_equal(np.asarray(covered), np.asarray(direct))
    assert cover(image, 400, 200, "x") is image
    assert cover(Image.fromarray(picture(33, 57)), 320, 192, "x").size == (320, 192)


def test_extreme_aspect_ratio_is_refused(tmp_path):
    Image.new("RGB", (40000, 1)).save(tmp_path / "a.png")
    with pytest.raises(SampleError, match=r"^x: .* too extreme"):
        read_media(tmp_path / "a.png", "x", size=(1280, 720))


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds nothing."""
    ihdr = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    idat = b"IDAT" + zlib.compress(b"")
    chunks = b"".join(struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (ihdr, idat))
    return b"\x89PNG\r\n\x1a\n" + chunks + b"\0\0\0\0IEND\xaeB`\x82"


def test_decompression_bomb_is_refused_by_its_header(tmp_path):
    (tmp_path / "a.png").write_bytes(png_header(60000, 60000))
    assert "megapixels" in refused(tmp_path / "a.png")


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"<svg/>", b"GIF89a" + b"\0" * 50, png_header(16, 16)])
def test_garbage_is_no_image(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    refused(tmp_path / "a.png")


def test_cut_image_is_refused(tmp_path):
    Image.fromarray(picture(64, 48)).save(tmp_path / "a.png")
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole[: len(whole) // 2])
    assert "damaged" in refused(tmp_path / "a.png")


def test_a_format_that_nobody_asked_for_is_refused_whatever_its_name(tmp_path):
    Image.fromarray(picture(16, 16)).save(tmp_path / "a.gif")
    (tmp_path / "a.gif").rename(tmp_path / "a.png")
    assert "PNG, JPEG or WebP" in refused(tmp_path / "a.png")


def test_missing_file_is_refused(tmp_path):
    refused(tmp_path / "no.png")
    refused(tmp_path / "no.mp4")


# ---- clips ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    return write_video(tmp_path_factory.mktemp("clip") / "a.mp4", frames(12, 128, 96), fps=10)


def test_whole_clip(clip):
    read = read_media(clip, "x")
    assert read.frames.shape == (12, 96, 128, 3)
    assert read.fps == 10.0
    assert np.abs(read.frames[3].astype(int) - picture(128, 96, 3)).mean() < 12


@pytest.mark.parametrize("keep, first", [("first", 0), ("last", 8)])
def test_either_end_of_a_clip(clip, keep, first):
    whole = read_media(clip, "x").frames
    part = read_media(clip, "x", max_frames=4, keep=keep).frames
    assert np.array_equal(part, whole[first : first + 4])
    assert len(read_media(clip, "x", max_frames=99, keep=keep).frames) == 12


def test_clip_is_resized_frame_by_frame(clip):
    assert read_media(clip, "x", size=(32, 48)).frames.shape == (12, 48, 32, 3)


def test_display_matrix_is_applied(tmp_path):
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 32, "yuv420p"
        for i in range(3):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture(64, 32, i), format="rgb24")))
        container.mux(stream.encode())
    flat = read_media(path, "x").frames
    content = bytearray(path.read_bytes())
    at = content.index(b"tkhd") + 4 + 4 + 4 * 5 + 8 + 8  # behind version, times, ids, reserved, layer and volume
    one = 1 << 16
    content[at : at + 36] = struct.pack(">9i", 0, one, 0, -one, 0, 0, 0, 0, 1 << 30)  # a quarter turn clockwise
    path.write_bytes(bytes(content))
    turned = read_media(path, "x").frames
    assert turned.shape == (3, 64, 32, 3)
    assert np.array_equal(turned[0], np.rot90(flat[0], -1))


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 4000, b"\0\0\0\x18ftypmp42" + b"\xff" * 2000, b"#EXTM3U\nhttp://x/a.ts\n"]
)
def test_garbage_is_no_clip(tmp_path, content):
    (tmp_path / "a.mp4").write_bytes(content)
    refused(tmp_path / "a.mp4")


def test_cut_clip_is_refused(tmp_path, clip):
    whole = clip.read_bytes()
    (tmp_path / "a.mp4").write_bytes(whole[: len(whole) // 2])
    refused(tmp_path / "a.mp4")


def test_sound_only_is_refused(tmp_path):
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    assert "no video stream" in refused(tmp_path / "a.mp4")


def test_too_many_frames(clip, monkeypatch):
    monkeypatch.setattr(media, "MAX_DECODED_FRAMES", 5)
    assert "more than 5 frames" in refused(clip, max_frames=2, keep="last")
    assert len(read_media(clip, "x", max_frames=5).frames) == 5


def test_too_many_bytes(clip, monkeypatch):
    monkeypatch.setattr(media, "MAX_CLIP_BYTES", 4 * 128 * 96 * 3)
    assert "shorter clip" in refused(clip)
    assert len(read_media(clip, "x", max_frames=4, keep="last").frames) == 4  # dropped frames take no room


def test_too_many_pixels(clip, monkeypatch):
    monkeypatch.setattr(media, "MAX_PIXELS", 64 * 64)
    assert "megapixels" in refused(clip)
