"""Clips, written with PyAV."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.stream import Disposition
from PIL import Image
from support.corpus.paint import HEIGHT, WIDTH, picture

FRAMES = 12
_QUALITY = {"libx264": {"crf": "10", "bf": "0"}, "libx265": {"crf": "10", "x265-params": "log-level=none"}}
_QUALITY |= {"libsvtav1": {"preset": "12", "crf": "20"}, "libvpx-vp9": {"cpu-used": "8", "crf": "10", "b": "0"}}
_QUALITY |= {"libvpx": {"cpu-used": "8", "deadline": "realtime", "b": "2M"}, "mpeg4": {"qscale": "2"}}
_QUALITY |= {"ffv1": {"level": "3", "slicecrc": "1"}}
_QUALITY |= {"mpeg2video": {"qscale": "2"}, "mjpeg": {"qscale": "2"}}
Paint = Callable[[int], Any]


def clip(
    path: Path,
    codec: str = "libx264",
    pixels: str = "yuv420p",
    *,
    frames: int = FRAMES,
    fps: float = 10,
    first: int = 0,
    times: Sequence[int] | None = None,
    base: Fraction | None = None,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    paint: Paint | None = None,
    options: dict[str, str] | None = None,
    container: dict[str, str] | None = None,
    form: str | None = None,
    sound: float = 0.0,
    before: Callable[[Any], Any] | None = None,
    frame: Callable[[Any], Any] | None = None,
    **attributes: Any,
) -> None:
    """
    Args:
        first: number of the first frame.
        times: presentation times in `base`; default: 0, 1, 2, … at `fps`.
        paint: frame index to uint8 [H, W, 3]; default: the numbered picture.
        frame: frame of PyAV to the one that is encoded; default: reformatted by libswscale as the attributes say.
        sound: seconds of silence beside it.
        attributes: of the codec context (colorspace, color_trc, …).
    """
    with av.open(str(path), "w", format=form, options=container or {}) as out:
        extra = before(out) if before else None
        rate = Fraction(fps).limit_denominator(1001)
        stream: Any = out.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = *size, pixels
        stream.options = {**_QUALITY.get(codec, {}), **(options or {})}
        for name, value in attributes.items():
            setattr(stream.codec_context, name, value)
        quiet: Any = None
        if sound:
            quiet = out.add_stream("libopus" if path.suffix == ".webm" else "aac", rate=48000)
            quiet.layout = "mono"
        if extra is not None:
            out.start_encoding()
            out.mux(extra)
        for index in range(frames):
            shown = paint(index) if paint else picture(first + index, *size)
            made = av.VideoFrame.from_ndarray(shown, format="rgb24")
            made = frame(made) if frame else _converted(made, pixels, attributes)
            made.pts, made.time_base = (
                (times or range(frames))[index],
                base or 1 / Fraction(fps).limit_denominator(1001),
            )
            out.mux(stream.encode(made))
        out.mux(stream.encode(None))
        if quiet:
            _silence(out, quiet, sound)
    if codec == "libsvtav1":  # it puts the calling thread into the real-time class where it may
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _converted(made: Any, pixels: str, attributes: dict[str, Any]) -> Any:
    to = {"dst_colorspace": attributes["colorspace"]} if attributes.get("colorspace") else {}
    to |= {"dst_color_range": attributes["color_range"]} if attributes.get("color_range") else {}
    return made.reformat(format=pixels, **to)


def _silence(out: Any, stream: Any, seconds: float) -> None:
    for index in range(int(seconds * 48000) // 1024):
        made = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        made.sample_rate, made.pts, made.time_base = 48000, index * 1024, Fraction(1, 48000)
        out.mux(stream.encode(made))
    out.mux(stream.encode(None))


def packets(codec: str, size: tuple[int, int], first: int, frames: int, form: str) -> list[bytes]:
    """Encoded frames alone."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=form) as out:
        stream: Any = out.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.options = _QUALITY[codec] | ({"lag-in-frames": "0", "auto-alt-ref": "0"} if codec == "libvpx" else {})
        made = []
        for index in range(frames):
            one = av.VideoFrame.from_ndarray(picture(first + index, *size), format="rgb24")
            one.pts, one.time_base = index, Fraction(1, 10)
            made += [bytes(packet) for packet in stream.encode(one)]
        return made + [bytes(packet) for packet in stream.encode(None)]


def size_changes(path: Path) -> None:
    """As browsers' recordings of calls do."""
    with av.open(str(path), "w", format="webm") as out:
        stream: Any = out.add_stream("libvpx", rate=10)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        both = packets("libvpx", (WIDTH, HEIGHT), 0, 6, "ivf") + packets("libvpx", (320, 192), 6, 6, "ivf")
        for index, data in enumerate(both):
            packet = av.Packet(data)
            packet.stream, packet.pts, packet.dts, packet.duration = stream, index * 100, index * 100, 100
            packet.time_base, packet.is_keyframe = Fraction(1, 1000), index in (0, 6)
            out.mux(packet)


def tracks(path: Path, clips: Sequence[tuple[int, int]], default: int | None = None) -> None:
    """
    Args:
        clips: (frames, number of the first) of each track.
        default: index of the track marked as default; None marks all.
    """
    with av.open(str(path), "w") as out:
        streams = []
        for index in range(len(clips)):
            stream: Any = out.add_stream("libx264", rate=10)
            stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
            stream.options = _QUALITY["libx264"]
            stream.disposition = Disposition.default if default in (None, index) else Disposition(0)
            streams.append(stream)
        for number in range(max(frames for frames, _ in clips)):
            for stream, (frames, first) in zip(streams, clips, strict=True):
                if number < frames:
                    one = av.VideoFrame.from_ndarray(picture(first + number), format="rgb24")
                    one.pts, one.time_base = number, Fraction(1, 10)
                    out.mux(stream.encode(one))
        for stream in streams:
            out.mux(stream.encode(None))


def cover(out: Any) -> Any:
    """A cover picture as the first video stream; its packet is muxed once all streams are there."""
    data = io.BytesIO()
    Image.fromarray(picture(255)).save(data, "JPEG")
    stream: Any = out.add_stream("mjpeg", rate=1)
    stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuvj420p"
    stream.disposition = Disposition.attached_pic
    packet = av.Packet(data.getvalue())
    packet.stream, packet.pts, packet.dts, packet.time_base = stream, 0, 0, Fraction(1, 90000)
    packet.is_keyframe = True
    return packet


def turned(path: Path, matrix: tuple[int, int, int, int], **options: Any) -> None:
    """A display matrix (a, b, c, d) in the track's header, 16.16 fixed."""
    clip(path, **options)
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 4 + 20 + 16
    a, b, c, d = (round(value * 65536) for value in matrix)
    data[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(bytes(data))


def sound_only(path: Path) -> None:
    with av.open(str(path), "w") as out:
        stream: Any = out.add_stream("aac", rate=48000)
        stream.layout = "mono"
        _silence(out, stream, 1.0)


def trimmed(path: Path, start_s: float) -> None:
    """Cut without encoding: what stands before `start_s` stays in the file, hidden by the edit list."""
    whole = path.with_name("whole_" + path.name)
    clip(whole, frames=20, options={"g": "20"})
    with av.open(str(whole)) as source, av.open(str(path), "w") as out:
        stream = out.add_stream_from_template(source.streams.video[0])
        shift = int(start_s / source.streams.video[0].time_base)
        for packet in source.demux(source.streams.video[0]):
            if packet.size:
                packet.pts, packet.dts, packet.stream = packet.pts - shift, packet.dts - shift, stream
                out.mux(packet)
    whole.unlink()


def graded(transfer: str) -> Callable[[Any], Any]:
    """From a picture in SDR to the frame of BT.2020 and PQ or HLG that shows the same, 10 bits, white at 203 cd/m2.

    By the standards' formulas: SDR light is code^2.4 (BT.1886), BT.709 to BT.2020 by BT.2087, ST 2084, BT.2100.
    """
    to_2020 = np.array([[0.6274, 0.3293, 0.0433], [0.0691, 0.9195, 0.0114], [0.0164, 0.0880, 0.8956]])

    def pq(light: Any) -> Any:
        y = np.clip(light * 203 / 10000, 0, 1) ** (2610 / 16384)
        return ((3424 / 4096 + 2413 / 128 * y) / (1 + 2392 / 128 * y)) ** (2523 / 32)

    def hlg(light: Any) -> Any:
        display = light * 203 / 1000
        luminance = np.maximum(display @ np.array([0.2627, 0.6780, 0.0593]), 1e-9)[..., None]
        scene = np.clip(display * luminance ** ((1 - 1.2) / 1.2), 0, 1)
        return np.where(
            scene <= 1 / 12,
            np.sqrt(3 * scene),
            0.17883277 * np.log(np.maximum(12 * scene - 0.28466892, 1e-9)) + 0.55991073,
        )

    def frame(made: Any) -> Any:
        light = (made.to_ndarray(format="rgb24") / 255.0) ** 2.4 @ to_2020.T
        red, green, blue = np.moveaxis((pq if transfer == "pq" else hlg)(light), -1, 0)
        luma = 0.2627 * red + 0.6780 * green + 0.0593 * blue
        planes = (64 + 876 * luma, 512 + 896 * (blue - luma) / 1.8814, 512 + 896 * (red - luma) / 1.4746)
        out = av.VideoFrame(made.width, made.height, "yuv444p10le")
        for plane, values in zip(out.planes, planes, strict=True):
            rows = np.zeros((plane.height, plane.line_size // 2), "<u2")
            rows[:, : made.width] = np.clip(np.round(values), 0, 1023)
            plane.update(rows.tobytes())
        return out

    return frame


def ts_packets(data: bytes) -> list[bytes]:
    return [data[at : at + 188] for at in range(0, len(data), 188)]


def of_video(packet: bytes) -> bool:
    return (packet[1] & 0x1F) << 8 | packet[2] == 256
