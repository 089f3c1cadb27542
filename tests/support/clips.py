"""Clips and pictures of every kind that the media gate must tell apart, made with PyAV and Pillow when asked for.

The picture says which way is up: a red bar on top, a blue one at the bottom, a green one at the left, and a white
square that walks, so that every frame differs.
"""

import functools
import io
import random
import struct
import subprocess
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import numpy as np
from PIL import Image

WIDTH, HEIGHT = 160, 96


def frame(index: int, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    picture = np.zeros((height, width, 3), np.uint8)
    picture[:, : width // 8] = (0, 255, 0)
    picture[: height // 4] = (255, 0, 0)
    picture[-height // 4 :] = (0, 0, 255)
    left = (index * 4) % (width - 16)
    picture[height // 2 - 8 : height // 2 + 8, left : left + 16] = 255
    return picture


@functools.cache
def clip(
    suffix: str = "mp4",
    codec: str = "libx264",
    *,
    frames: int = 24,
    fps: int = 12,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    pixel_format: str = "yuv420p",
    times_ms: tuple[int, ...] | None = None,
    options: tuple[tuple[str, str], ...] = (),
    container_options: tuple[tuple[str, str], ...] = (),
    sound: bool = False,
) -> bytes:
    """One clip's bytes. `times_ms`: when each frame is shown, for a variable rate."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"clip.{suffix}"
        with av.open(str(path), "w", options=dict(container_options)) as container:
            stream: Any = container.add_stream(codec, rate=fps, options=dict(options))
            stream.width, stream.height, stream.pix_fmt = *size, pixel_format
            audio: Any = container.add_stream("aac", rate=48000) if sound else None
            if times_ms:
                stream.codec_context.time_base = Fraction(1, 1000)
            for index in range(frames):
                shown = av.VideoFrame.from_ndarray(frame(index, *size), format="rgb24")
                if times_ms:
                    shown.pts, shown.time_base = times_ms[index], Fraction(1, 1000)
                container.mux(stream.encode(shown))
            container.mux(stream.encode(None))
            if audio is not None:
                _mux_silence(container, audio, frames / fps)
        return path.read_bytes()


def _mux_silence(container: Any, stream: Any, seconds: float) -> None:
    for index in range(round(seconds * 48000 / 1024)):
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        silence.sample_rate, silence.pts = 48000, index * 1024
        container.mux(stream.encode(silence))
    container.mux(stream.encode(None))


@functools.cache
def sound_only() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "sound.mp4"
        with av.open(str(path), "w") as container:
            _mux_silence(container, container.add_stream("aac", rate=48000), 1.0)
        return path.read_bytes()


VARIABLE_MS = (0, 100, 200, 300, 400, 500, 2000, 2100, 2200, 2300, 4000, 4100, 4200, 4300, 4400, 4500, 4600, 4700)


def variable(suffix: str = "mp4", codec: str = "libx264") -> bytes:
    """18 frames in 4.8 s, in three bursts."""
    return clip(suffix, codec, frames=len(VARIABLE_MS), times_ms=VARIABLE_MS)


def jitter() -> bytes:
    """24 frames in 2 s, each up to 10 ms off, as phones make them."""
    place = random.Random(1)
    return clip(frames=24, times_ms=tuple(i * 83 + place.randint(-10, 10) + 20 for i in range(24)))


def rewritten(data: bytes, suffix: str, *options: str, before: tuple[str, ...] = ()) -> bytes:
    """A clip through FFmpeg itself, for what PyAV cannot write: edit lists, streams without a length."""
    import imageio_ffmpeg

    with TemporaryDirectory() as folder:
        source, target = Path(folder) / "in.mp4", Path(folder) / f"out.{suffix}"
        source.write_bytes(data)
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", *before, "-i", str(source), *options, str(target)]
        subprocess.run(command, check=True, timeout=60)
        return target.read_bytes()


@functools.cache
def av1(suffix: str, *, size: tuple[int, int] = (192, 128)) -> bytes:
    """An AV1 clip from libaom in a process of its own. PyAV brings only SVT-AV1, which, run as root, makes the calling
    thread SCHED_FIFO 99 for good: all that the test process then starts inherits it and starves the machine."""
    return rewritten(clip(size=size), suffix, "-c:v", "libaom-av1", "-cpu-used", "8", "-row-mt", "0", "-threads", "1")


# ---- the same bytes with one thing changed --------------------------------------------------------------------------

_TURN = {0: (1, 0, 0, 1), 90: (0, -1, 1, 0), 180: (-1, 0, 0, -1), 270: (0, 1, -1, 0)}
MIRROR = (-1, 0, 0, 1)


def turned(data: bytes, turn: int | Sequence[float]) -> bytes:
    """An MP4 with another display matrix: degrees counter-clockwise, or (a, b, c, d)."""
    a, b, c, d = (round(v * 65536) for v in (_TURN[turn] if isinstance(turn, int) else turn))
    at = data.index(b"tkhd") + 44
    return data[:at] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30) + data[at + 36 :]


def recounted(data: bytes, frames: int) -> bytes:
    """An MP4 whose header counts `frames` frames, whatever it holds."""
    at = data.index(b"stts") + 12
    return data[:at] + struct.pack(">I", frames) + data[at + 4 :]


def declared(data: bytes, width: int, height: int) -> bytes:
    """A PNG, an AVI or a VP9 WebM whose header declares another size."""
    if data.startswith(b"\x89PNG"):
        import zlib

        head = data[12:16] + struct.pack(">II", width, height) + data[24:29]
        return data[:12] + head + struct.pack(">I", zlib.crc32(head)) + data[33:]
    if data.startswith(b"RIFF"):
        at = data.index(b"strf") + 12  # width and height of the stream's BITMAPINFOHEADER
        return data[:at] + struct.pack("<II", width, height) + data[at + 8 :]
    # VP9's own key frame header, behind its sync code.
    at = data.index(b"\x49\x83\x42") + 3
    bits = int.from_bytes(data[at : at + 5], "big")
    # 3 bits of colour space and 1 of range stand before 16 bits of width - 1 and 16 of height - 1.
    keep = bits & ~(0xFFFFFFFF << 4)
    bits = (bits & (0xF << 36)) | ((width - 1) << 20) | ((height - 1) << 4) | (keep & 0xF)
    return data[:at] + bits.to_bytes(5, "big") + data[at + 5 :]


def picture(
    name: str = "PNG", size: tuple[int, int] = (WIDTH, HEIGHT), *, orientation: int | None = None, frames: int = 1
) -> bytes:
    """An image of a format, perhaps with an EXIF orientation, perhaps animated."""
    images = [Image.fromarray(frame(index, *size)) for index in range(frames)]
    out = io.BytesIO()
    more: dict[str, Any] = {"save_all": True, "append_images": images[1:]} if frames > 1 else {}
    if orientation is not None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        more["exif"] = exif
    images[0].save(out, name, **more)
    return out.getvalue()


def up(pixels: Any) -> str:
    """Which colours are at the top, right, bottom and left of a decoded RGB frame: `R.BG` is upright."""
    array = np.asarray(pixels)
    height, width = array.shape[:2]
    spots = (array[4, width // 2], array[height // 2, -4], array[-5, width // 2], array[height // 2, 3])
    return "".join("RGB"[int(np.argmax(spot))] if spot.max() > 120 else "." for spot in spots)


def decoded(data: bytes) -> list[np.ndarray]:
    """Frames of a clip as stored (no rotation applied), RGB."""
    with av.open(io.BytesIO(data)) as container:
        return [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
