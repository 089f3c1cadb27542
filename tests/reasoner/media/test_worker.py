"""Every kind of file gets the right answer or the right refusal. In this process, over the worker's own function."""

import errno
import io
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image
from support import clips

from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.replica import ReplicaDecoder
from cosmos3_serve.reasoner.media.worker import answer

LIMITS, DECODER = MediaLimits(), ReplicaDecoder()


def probed(folder: Path, data: bytes, kind: str = "video", limits: MediaLimits = LIMITS, **more: Any) -> dict[str, Any]:
    path, out = folder / "in", folder / "out"
    path.write_bytes(data)
    job = {"path": str(path), "kind": kind, "out": str(out)}
    return answer(job, limits, more.get("decoder", DECODER))


def passed(folder: Path, data: bytes, kind: str = "video", **more: Any) -> dict[str, Any]:
    found = probed(folder, data, kind, **more)
    assert "info" in found, found
    return found


def refused(folder: Path, data: bytes, kind: str = "video", **more: Any) -> dict[str, Any]:
    found = probed(folder, data, kind, **more)
    assert "refused" in found, found
    return found["refused"]


@pytest.mark.parametrize(
    ("suffix", "codec", "mime", "name"),
    [
        ("mp4", "libx264", "video/mp4", "h264"),
        ("mov", "libx264", "video/quicktime", "h264"),
        ("mkv", "libx264", "video/x-matroska", "h264"),
        ("mp4", "libx265", "video/mp4", "hevc"),
        ("webm", "libvpx-vp9", "video/webm", "vp9"),
        ("webm", "libvpx", "video/webm", "vp8"),
        ("avi", "mpeg4", "video/x-msvideo", "mpeg4"),
    ],
)
def test_what_replicas_decode_passes_as_it_is(tmp_path: Path, suffix: str, codec: str, mime: str, name: str) -> None:
    found = passed(tmp_path, clips.clip(suffix, codec))
    info = found["info"]
    assert found["served"] is None
    assert (info["mime"], info["codec"]) == (mime, name)
    assert (info["width"], info["height"], info["frames"], info["replica_frames"]) == (160, 96, 24, 24)
    assert info["fps"] == pytest.approx(12)
    assert info["duration_s"] == pytest.approx(2)
    assert not info["variable_rate"]
    assert info["rotation"] == 0


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: clips.av1("mp4"), "cannot decode av1"),
        (lambda: clips.av1("webm"), "cannot decode av1"),
        (lambda: clips.clip("ts", "mpeg2video", fps=25), "cannot seek in mpegts"),
        (lambda: clips.turned(clips.clip(), clips.MIRROR), "mirrored"),
        (lambda: clips.variable(), "variable"),
        (lambda: clips.variable("mkv"), "variable"),
        (lambda: clips.variable("webm", "libvpx-vp9"), "variable"),
    ],
    ids=["av1.mp4", "av1.webm", "mpeg2.ts", "mirrored", "vfr.mp4", "vfr.mkv", "vfr.webm"],
)
def test_what_replicas_get_wrong_is_normalised(tmp_path: Path, made: Callable[[], bytes], reason: str) -> None:
    found = passed(tmp_path, made())
    served = found["served"]
    assert reason in served["normalised"][0]
    copy = (tmp_path / "out").read_bytes()
    again = passed(tmp_path, copy)
    assert again["served"] is None, "the copy needs no copy"
    for field in ("codec", "width", "height", "frames", "fps", "size", "replica_frames"):
        assert again["info"][field] == served[field], field


def test_a_mirrored_clip_is_mirrored_for_the_replica(tmp_path: Path) -> None:
    passed(tmp_path, clips.turned(clips.clip(), clips.MIRROR))
    copied = clips.decoded((tmp_path / "out").read_bytes())
    assert clips.up(copied[10]) == "RGB."
    assert clips.up(clips.frame(10)) == "R.BG"


@pytest.mark.parametrize("turn", [90, 180, 270])
def test_rotation_is_told_and_left_to_replicas_that_apply_it(tmp_path: Path, turn: int) -> None:
    found = passed(tmp_path, clips.turned(clips.clip(), turn))
    info = found["info"]
    assert info["rotation"] == turn
    assert (info["width"], info["height"]) == ((96, 160) if turn != 180 else (160, 96))
    assert found["served"] is None


@pytest.mark.parametrize(("turn", "seen"), [(90, ".BGR"), (180, "BGR."), (270, "GR.B")])
def test_rotation_is_applied_for_replicas_that_do_not(tmp_path: Path, turn: int, seen: str) -> None:
    found = passed(tmp_path, clips.turned(clips.clip(), turn), decoder=ReplicaDecoder(name="flat", turns_upright=False))
    copied = clips.decoded((tmp_path / "out").read_bytes())
    assert len(copied) == 24
    assert clips.up(copied[10]) == seen
    assert copied[10].shape[:2] == (found["served"]["height"], found["served"]["width"])


def test_frames_of_a_variable_clip_stand_at_their_times(tmp_path: Path) -> None:
    served = passed(tmp_path, clips.variable())["served"]
    assert served["fps"] == pytest.approx(10)
    copied = clips.decoded((tmp_path / "out").read_bytes())
    assert len(copied) == served["frames"] == 48

    def square(picture: np.ndarray) -> int:
        return int(np.argmax(picture[48].min(axis=1) > 180))

    # At 1 s the sixth frame (shown from 0.5 s) still is on, at 2.05 s the seventh, at 4.5 s the sixteenth.
    for seconds, index in ((1.0, 5), (2.0, 6), (4.5, 15)):
        assert square(copied[round(seconds * 10)]) == pytest.approx(index * 4, abs=2)


def test_a_little_jitter_is_no_reason_to_convert(tmp_path: Path) -> None:
    found = passed(tmp_path, clips.jitter())
    assert found["info"]["variable_rate"]
    assert found["served"] is None


@pytest.mark.parametrize(("start", "hidden", "replica"), [("0.04", 1, 48), ("0.5", 12, 36), ("1.25", 30, 18)])
def test_frames_that_an_edit_list_hides_are_not_counted(tmp_path: Path, start: str, hidden: int, replica: int) -> None:
    """A cut without encoding keeps the frames since the last key frame, and hides them. Seen on the replica's own
    loader: it corrects its count where it is off by more than one."""
    cut = clips.rewritten(clips.clip(frames=48, fps=24), "mp4", "-c", "copy", before=("-ss", start))
    found = passed(tmp_path, cut)
    info = found["info"]
    assert (info["frames"], info["header_frames"], info["replica_frames"]) == (48 - hidden, 48, replica)
    assert info["fps"] == 24
    assert found["served"] is None


def test_a_stream_without_a_length_is_normalised(tmp_path: Path) -> None:
    live = clips.rewritten(clips.clip(frames=30), "webm", "-c:v", "libvpx", "-live", "1")
    found = passed(tmp_path, live)
    assert found["served"]["normalised"] == ["the container counts no frames"]
    assert found["served"]["frames"] == 30


def test_two_frames_are_enough_and_one_is_not(tmp_path: Path) -> None:
    assert passed(tmp_path, clips.clip(frames=2))["info"]["frames"] == 2
    assert passed(tmp_path, clips.clip(frames=5, fps=25))["info"]["duration_s"] == pytest.approx(0.2)
    reason = refused(tmp_path, clips.clip(frames=1))
    assert (reason["status"], reason["code"]) == (422, "media_too_few_frames")
    assert "ffmpeg" in reason["remedy"]


def test_sound_beside_the_picture_is_fine_and_alone_is_not(tmp_path: Path) -> None:
    assert passed(tmp_path, clips.clip(sound=True))["info"]["has_audio"]
    reason = refused(tmp_path, clips.sound_only())
    assert (reason["status"], reason["code"]) == (422, "media_no_video")
    assert "sound" in reason["message"]


@pytest.mark.parametrize(("count", "copied"), [(18, True), (23, False)])
def test_a_header_that_counts_too_few_frames_is_contradicted(tmp_path: Path, count: int, copied: bool) -> None:
    """Replicas believe it: more than one frame too few costs a copy."""
    found = passed(tmp_path, clips.recounted(clips.clip(), count))
    assert found["info"]["frames"] == 24 and str(count) in found["info"]["record"]["notes"][0]
    assert (found["served"] is not None) == copied


def test_a_header_that_counts_too_many_frames_is_refused_with_both_numbers(tmp_path: Path) -> None:
    count = 500
    reason = refused(tmp_path, clips.recounted(clips.clip(), count))
    assert (reason["status"], reason["code"]) == (422, "media_frame_count_wrong")
    assert str(count) in reason["message"]
    assert "24" in reason["message"]
    assert "ffmpeg" in reason["remedy"]


@pytest.mark.parametrize(
    "data",
    [
        clips.clip()[:-1500],
        clips.clip(container_options=(("movflags", "+faststart"),))[:-700],
        clips.clip("mkv")[:-700],
        clips.clip("avi", "mpeg4")[:-4000],
        clips.picture()[:-40],
        clips.picture("JPEG")[:-300],
    ],
    ids=["mp4", "faststart", "mkv", "avi", "png", "jpeg"],
)
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, data: bytes) -> None:
    kind = "video" if data[:2] not in (b"\x89P", b"\xff\xd8") else "image"
    reason = refused(tmp_path, data, kind)
    assert (reason["status"], reason["code"]) == (422, "media_truncated"), reason


@pytest.mark.parametrize(
    ("data", "kind", "status", "code", "words"),
    [
        (b"hello, I am a video", "video", 400, "media_not_media", "text"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "video", 400, "media_not_media", "html"),
        (b'{"error": "no"}', "image", 400, "media_not_media", "json"),
        (b"\0" * 100, "video", 415, "media_not_media", "nothing"),
        (b"%PDF-1.7 ...", "image", 415, "media_not_media", "pdf"),
        (b"OggS" + bytes(100), "video", 415, "media_type_unsupported", "ogg"),
        (b"\0\0\0\x1cftypheic" + bytes(100), "image", 415, "media_type_unsupported", "heic"),
        (clips.picture(), "video", 415, "media_type_mismatch", "image_url"),
        (clips.clip(), "image", 415, "media_type_mismatch", "video"),
        (b"#EXTM3U\n#EXT-X-VERSION:3\nhttp://127.0.0.1/x.ts\n", "video", 400, "media_not_media", "text"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "video", 400, "media_not_media", "text"),
        (b"\0\0\0\x18ftypisom" + bytes(range(200)), "video", 422, "media_truncated", "cannot be opened"),
        (b"\x1a\x45\xdf\xa3" + bytes(range(200)), "video", 422, "media_truncated", "cannot be opened"),
    ],
)
def test_what_is_no_video_or_image_is_named(
    tmp_path: Path, data: bytes, kind: str, status: int, code: str, words: str
) -> None:
    reason = refused(tmp_path, data, kind)
    assert (reason["status"], reason["code"]) == (status, code), reason
    assert words in reason["message"] + reason["remedy"]
    assert str(tmp_path) not in str(reason), "no path of ours leaves"


def test_pixels_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    for data, kind in (
        (clips.declared(clips.picture(), 60000, 60000), "image"),
        (clips.declared(clips.clip("avi", "ffv1"), 12000, 12000), "video"),
    ):
        reason = refused(tmp_path, data, kind)
        assert (reason["status"], reason["code"]) == (413, "media_too_many_pixels"), reason
        assert "000x" in reason["message"]
    for data in (clips.clip("webm", "libvpx-vp9"), clips.clip("avi", "ffv1")):
        reason = refused(tmp_path, clips.declared(data, 60000, 60000))  # FFmpeg itself gives up on such a header
        assert (reason["status"], reason["code"]) == (422, "media_no_pixels")
    small = MediaLimits(max_frame_pixels=10_000, max_image_pixels=10_000)
    for data, kind in ((clips.clip(), "video"), (clips.picture(), "image")):
        reason = refused(tmp_path, data, kind, limits=small)
        assert (reason["status"], reason["code"]) == (413, "media_too_many_pixels")
        assert "160x96" in reason["message"]


def test_long_large_and_extreme_clips(tmp_path: Path) -> None:
    for limits, code in (
        (MediaLimits(max_frames=20), "media_too_long"),
        (MediaLimits(max_duration_s=1), "media_too_long"),
        (MediaLimits(max_video_pixels=10**5), "media_too_many_pixels"),
        (MediaLimits(max_aspect=1.5), "media_aspect_extreme"),
    ):
        assert refused(tmp_path, clips.clip(), limits=limits)["code"] == code
    reason = refused(tmp_path, clips.av1("webm"), limits=MediaLimits(max_normalise_pixels=1000))
    assert (reason["status"], reason["code"]) == (413, "media_needs_conversion")
    assert "ffmpeg" in reason["remedy"]


def test_beyond_the_bound_only_the_ends_are_decoded(tmp_path: Path) -> None:
    limits = MediaLimits(full_decode_pixels=0)
    assert passed(tmp_path, clips.clip(frames=60), limits=limits)["info"]["frames"] == 60


def test_damage_in_the_middle(tmp_path: Path) -> None:
    data = bytearray(clips.clip("avi", "mjpeg", pixel_format="yuvj420p"))
    at = len(data) // 3
    data[at : at + len(data) // 3] = bytes(len(data) // 3)
    reason = refused(tmp_path, bytes(data))
    assert reason["status"] == 422


@pytest.mark.parametrize(("name", "mime"), [("PNG", "image/png"), ("JPEG", "image/jpeg"), ("WEBP", "image/webp")])
def test_images(tmp_path: Path, name: str, mime: str) -> None:
    info = passed(tmp_path, clips.picture(name), "image")["info"]
    assert (info["mime"], info["width"], info["height"], info["frames"]) == (mime, 160, 96, 1)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_told_as_pillow_applies_it(tmp_path: Path, orientation: int) -> None:
    from PIL import ImageOps

    data = clips.picture("JPEG", orientation=orientation)
    info = passed(tmp_path, data, "image")["info"]
    with Image.open(tmp_path / "in") as image:
        assert (info["width"], info["height"]) == ImageOps.exif_transpose(image).size


def test_an_animation_is_an_image_or_a_clip(tmp_path: Path) -> None:
    data = clips.picture("GIF", frames=6)
    assert passed(tmp_path, data, "image")["info"]["frames"] == 1
    assert passed(tmp_path, data, "video")["info"]["frames"] >= 2


# ---- what a plain decoder shows wrongly ----------------------------------------------------------------------------


def painted(folder: Path, name: str, *, frames: int = 6, size: tuple[int, int] = (64, 48), **stream: Any) -> bytes:
    """Red on the left, blue on the right, through PyAV with the given attributes of the stream's codec."""
    path = folder / name
    with av.open(str(path), "w") as container:
        made = container.add_stream("libx264", rate=10)
        made.width, made.height, made.pix_fmt = *size, "yuv420p"
        for key, value in stream.items():
            setattr(made.codec_context, key, value)
        picture = np.zeros((size[1], size[0], 3), np.uint8)
        picture[:, : size[0] // 2], picture[:, size[0] // 2 :] = (200, 0, 0), (0, 0, 200)
        for _ in range(frames):
            container.mux(made.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(made.encode())
    return path.read_bytes()


def test_pixels_that_are_not_square_are_made_square(tmp_path: Path) -> None:
    found = passed(tmp_path, painted(tmp_path, "a.mp4", sample_aspect_ratio=Fraction(2, 1)))
    assert found["info"]["record"]["sample_aspect"] == "2:1"
    assert (found["info"]["width"], found["served"]["width"], found["served"]["height"]) == (128, 128, 48)
    assert found["served"]["normalised"] == ["pixels of 2:1"]


@pytest.mark.parametrize("transfer", [16, 18])
def test_high_dynamic_range_is_brought_to_sdr(tmp_path: Path, transfer: int) -> None:
    data = painted(tmp_path, "a.mp4", color_trc=transfer, color_primaries=9, colorspace=9, color_range=1)
    found = passed(tmp_path, data)
    assert any("mapped to SDR" in reason for reason in found["served"]["normalised"])
    copy = passed(tmp_path, (tmp_path / "out").read_bytes())
    assert copy["info"]["record"]["transfer"] == "unspecified" and copy["served"] is None


def test_a_picture_of_sixteen_bits_is_copied_with_its_scale(tmp_path: Path) -> None:
    depth = np.tile(np.linspace(0, 65535, 64).astype(np.uint16), (48, 1))
    data = io.BytesIO()
    Image.fromarray(depth).save(data, "PNG")
    found = passed(tmp_path, data.getvalue(), "image")
    assert found["served"]["normalised"] == ["16 bits of grey scaled to 8"]
    with Image.open(tmp_path / "out") as copy:
        assert np.array_equal(np.asarray(copy)[..., 0], (depth >> 8).astype(np.uint8))


def test_a_transparent_picture_is_left_to_replicas_that_show_it_on_white(tmp_path: Path) -> None:
    data = io.BytesIO()
    Image.new("RGBA", (64, 48), (200, 0, 0, 0)).save(data, "PNG")
    found = passed(tmp_path, data.getvalue(), "image")
    assert found["served"] is None and found["info"]["record"]["alpha"]


def test_our_full_disk_is_no_verdict_on_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise av.error.OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cosmos3_serve.reasoner.media.normalise._Writer._write", full)
    assert probed(tmp_path, clips.variable()) == {"fault": "No space left on device"}
