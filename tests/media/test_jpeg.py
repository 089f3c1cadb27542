"""Sizes in a JPEG's markers, and a video whose frames are not all of the size that it declares."""

import io
from fractions import Fraction
from pathlib import Path

import av
import pytest
from PIL import Image

from cosmos3_serve.media.jpeg import jpeg_sizes
from cosmos3_serve.media.limits import ReadLimits
from cosmos3_serve.media.refusal import Refused
from cosmos3_serve.media.sniff import sniff
from cosmos3_serve.media.video import read_video


def jpeg(width: int, height: int, **more: object) -> bytes:
    out = io.BytesIO()
    Image.effect_noise((width, height), 80).convert("RGB").save(out, "JPEG", **more)
    return out.getvalue()


def test_each_frame_header_is_found_and_nothing_else() -> None:
    thumbnail = b"\xff\xd8\xff\xe1\x00\x0a" + b"\xff\xc0\x00\x11\x08\xff\xff\xff"  # in a segment of its own
    for more in ({}, {"progressive": True}, {"quality": 100}):
        assert list(jpeg_sizes(jpeg(160, 96, **more))) == [(160, 96)]
    assert list(jpeg_sizes(thumbnail + jpeg(160, 96) + jpeg(320, 64))) == [(160, 96), (320, 64)]
    for cut in range(200):
        assert list(jpeg_sizes(jpeg(16, 16)[:cut])) in ([], [(16, 16)])


@pytest.mark.parametrize("full", [1, 10**9])
@pytest.mark.parametrize("large", [(), (7,), (19,)])
def test_no_frame_may_be_larger_than_the_limit_wherever_it_stands(
    tmp_path: Path, large: tuple[int, ...], full: int
) -> None:
    path = tmp_path / "x.avi"
    with av.open(str(path), "w", format="avi") as out:
        stream = out.add_stream("mjpeg", rate=10)
        stream.width, stream.height, stream.pix_fmt = 160, 96, "yuvj420p"
        for number in range(20):
            packet = av.Packet(jpeg(640, 480) if number in large else jpeg(160, 96))
            packet.pts = packet.dts = number
            packet.time_base, packet.duration, packet.stream = Fraction(1, 10), 1, stream
            packet.is_keyframe = True
            out.mux(packet)
    limits = ReadLimits(max_frame_pixels=100_000, full_decode_pixels=full)
    sniffed = sniff(path.read_bytes()[:4096])
    if not large:
        assert read_video(path, sniffed, limits).stored == 20
        return
    with pytest.raises(Refused) as refused:
        read_video(path, sniffed, limits)
    assert refused.value.as_error("file").stable_code == "media_too_many_pixels"
