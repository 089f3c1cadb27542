"""Reading: upright, cropped, bounded, complete, and every kind of garbage refused with its reason."""

import struct
import zlib
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image
from support.corpus.video import clip as clip_of
from support.media import frames, picture, write_video

from cosmos3_serve.media import read as module
from cosmos3_serve.media.limits import ReadLimits
from cosmos3_serve.media.read import Media, NoRoom, Want, cover, read_media
from cosmos3_serve.media.refusal import Refused

LIMITS = ReadLimits()


def read(path: Path, limits: ReadLimits = LIMITS, **want) -> Media:
    return read_media(path, Want(**want), limits)


def refused(path: Path, limits: ReadLimits = LIMITS, **want) -> Refused:
    with pytest.raises(Refused) as caught:
        read(path, limits, **want)
    assert caught.value.remedy and str(path) not in caught.value.message + caught.value.remedy
    return caught.value


# ---- images ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".jpeg", ".webp", ".PNG"])
def test_still_image_is_a_clip_of_one_frame(tmp_path, suffix):
    Image.fromarray(picture(64, 48)).save(tmp_path / f"a{suffix}")
    clip = read(tmp_path / f"a{suffix}")
    assert clip.frames.shape == (1, 48, 64, 3) and clip.frames.dtype == np.uint8
    assert clip.fps == 1.0


def test_exif_rotation_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side
    Image.fromarray(picture(64, 32)).save(tmp_path / "a.jpg", exif=exif, quality=95)
    assert read(tmp_path / "a.jpg").frames.shape == (1, 64, 32, 3)


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "I;16", "1"])
def test_every_colour_mode_becomes_rgb(tmp_path, mode):
    array = np.zeros((8, 8), np.uint16)
    image = Image.fromarray(array) if mode == "I;16" else Image.new(mode, (8, 8))
    image.save(tmp_path / "a.png")
    assert read(tmp_path / "a.png").frames.shape == (1, 8, 8, 3)


def test_cover_crops_the_centre_without_distortion():
    image = picture(400, 200)
    covered = cover(image, (100, 100))
    assert covered.shape == (100, 100, 3)
    direct = Image.fromarray(image).resize((200, 100), Image.Resampling.BILINEAR).crop((50, 0, 150, 100))
    assert np.array_equal(covered, np.asarray(direct))
    assert cover(image, (400, 200)) is image and cover(image, None) is image
    assert cover(picture(33, 57), (320, 192)).shape == (192, 320, 3)


def test_extreme_aspect_ratio_is_refused(tmp_path):
    Image.new("RGB", (40000, 1)).save(tmp_path / "a.png")
    assert refused(tmp_path / "a.png").code == "media_aspect_extreme"
    Image.new("RGB", (19000, 100)).save(tmp_path / "b.png")
    assert refused(tmp_path / "b.png", size=(1280, 720)).code == "media_aspect_extreme"


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds nothing."""
    ihdr = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    idat = b"IDAT" + zlib.compress(b"")
    chunks = b"".join(struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (ihdr, idat))
    return b"\x89PNG\r\n\x1a\n" + chunks + b"\0\0\0\0IEND\xaeB`\x82"


def test_decompression_bomb_is_refused_by_its_header(tmp_path):
    (tmp_path / "a.png").write_bytes(png_header(60000, 60000))
    assert refused(tmp_path / "a.png").code == "media_too_many_pixels"


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"<svg/>", b"GIF89a" + b"\0" * 50, png_header(16, 16)])
def test_garbage_is_no_image(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    refused(tmp_path / "a.png", kind="image")


def test_cut_image_is_refused(tmp_path):
    Image.fromarray(picture(64, 48)).save(tmp_path / "a.png")
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole[: len(whole) // 2])
    assert refused(tmp_path / "a.png").code == "media_truncated"


def test_a_format_that_nobody_asked_for_is_refused_whatever_its_name(tmp_path):
    Image.fromarray(picture(16, 16)).save(tmp_path / "a.bmp")
    (tmp_path / "a.bmp").rename(tmp_path / "a.png")
    assert refused(tmp_path / "a.png", kind="image").code == "media_type_unsupported"


def test_a_missing_file_is_no_verdict(tmp_path):
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "no.png")


# ---- clips ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    return write_video(tmp_path_factory.mktemp("clip") / "a.mp4", frames(12, 128, 96), fps=10)


def test_whole_clip(clip):
    whole = read(clip)
    assert whole.frames.shape == (12, 96, 128, 3)
    assert whole.fps == 10.0 and whole.times_s == pytest.approx([n / 10 for n in range(12)])
    assert np.abs(whole.frames[3].astype(int) - picture(128, 96, 3)).mean() < 12


@pytest.mark.parametrize("keep, first", [("first", 0), ("last", 8)])
def test_either_end_of_a_clip(clip, keep, first):
    whole = read(clip).frames
    part = read(clip, max_frames=4, keep=keep).frames
    assert np.array_equal(part, whole[first : first + 4])
    assert len(read(clip, max_frames=99, keep=keep).frames) == 12


def test_clip_is_resized_frame_by_frame(clip):
    assert read(clip, size=(32, 48)).frames.shape == (12, 48, 32, 3)


def test_display_matrix_is_applied(tmp_path):
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 32, "yuv420p"
        for i in range(3):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture(64, 32, i), format="rgb24")))
        container.mux(stream.encode())
    flat = read(path).frames
    content = bytearray(path.read_bytes())
    at = content.index(b"tkhd") + 4 + 4 + 4 * 5 + 8 + 8  # behind version, times, ids, reserved, layer and volume
    one = 1 << 16
    content[at : at + 36] = struct.pack(">9i", 0, one, 0, -one, 0, 0, 0, 0, 1 << 30)  # a quarter turn clockwise
    path.write_bytes(bytes(content))
    turned = read(path).frames
    assert turned.shape == (3, 64, 32, 3)
    assert np.array_equal(turned[0], np.rot90(flat[0], -1))


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 4000, b"\0\0\0\x18ftypmp42" + b"\xff" * 2000, b"#EXTM3U\nhttp://x/a.ts\n"]
)
def test_garbage_is_no_clip(tmp_path, content):
    (tmp_path / "a.mp4").write_bytes(content)
    refused(tmp_path / "a.mp4", kind="video")


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
    assert refused(tmp_path / "a.mp4").code == "media_no_video"


def test_too_many_frames(clip):
    few = replace(LIMITS, max_frames=5)
    assert refused(clip, few, max_frames=2, keep="last").code == "media_too_long"
    assert refused(clip, few, max_frames=5).code == "media_too_long", "the rest is decoded to know that it is there"


def test_too_many_bytes(clip):
    four = replace(LIMITS, max_kept_bytes=4 * 128 * 96 * 3)
    assert refused(clip, four).code == "media_too_large"
    assert len(read(clip, four, max_frames=4, keep="last").frames) == 4  # dropped frames take no room
    with pytest.raises(NoRoom):
        read(clip, max_frames=4, room=4 * 128 * 96 * 3 - 1)


def test_too_many_pixels(clip):
    assert refused(clip, replace(LIMITS, max_frame_pixels=64 * 64)).code == "media_too_many_pixels"
    assert refused(clip, replace(LIMITS, max_video_pixels=5 * 128 * 96)).code == "media_too_many_pixels"


@pytest.mark.parametrize("codec", ["libx264", "libx265", "mpeg4", "libsvtav1"])
def test_a_clip_cut_anywhere_behind_its_index_is_refused_also_for_its_first_frames(codec, tmp_path):
    clip_of(tmp_path / "whole.mp4", codec, container={"movflags": "faststart"})
    data = (tmp_path / "whole.mp4").read_bytes()
    start = data.index(b"mdat") + 4
    for end in range(start, len(data), max(1, (len(data) - start) // 40)):
        (tmp_path / "cut.mp4").write_bytes(data[:end])
        assert refused(tmp_path / "cut.mp4", max_frames=1).code == "media_truncated"


def test_the_last_frames_are_the_same_raw_or_converted_as_they_come(clip, monkeypatch):
    expected = read(clip, max_frames=3, keep="last").frames
    monkeypatch.setattr(module, "HELD_RAW_BYTES", 0)
    assert np.array_equal(read(clip, max_frames=3, keep="last").frames, expected)


def test_what_the_index_counts_is_refused_before_a_frame_is_decoded(clip, monkeypatch):
    def decoded(*_):
        raise AssertionError("a frame was decoded")

    monkeypatch.setattr("cosmos3_serve.media.video._Pass._decode", decoded)
    assert refused(clip, replace(LIMITS, max_video_pixels=11 * 128 * 96)).code == "media_too_many_pixels"
    assert refused(clip, replace(LIMITS, max_frames=11)).code == "media_too_long"
