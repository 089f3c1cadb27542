"""A few small pictures out of one media file, with bounded memory: never more than one full frame at a time."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
from PIL import Image, ImageOps

from cosmos3_serve.errors import IntegrityError

VIDEO_SUFFIXES = frozenset({".mp4"})
# A reviewer needs a glimpse; a very long video is judged by its first part instead of minutes of decoding.
MAX_FRAMES_DECODED = 3000


@dataclass(frozen=True, slots=True)
class Frame:
    """One picture (RGB, fits the box) and its time in seconds; None for an image."""

    image: Image.Image
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Glimpse:
    """`size` is the media's own width and height in pixels."""

    size: tuple[int, int]
    frames: tuple[Frame, ...]


def glimpse(path: Path, *, count: int, box: tuple[int, int]) -> Glimpse:
    """The image, or up to `count` frames spread evenly over the video, first and last included.

    Raises:
        IntegrityError: code `media_unreadable`: it is not what its name says.
    """
    try:
        found = _video(path, count, box) if path.suffix.lower() in VIDEO_SUFFIXES else _image(path, box)
    except (OSError, ValueError, Image.DecompressionBombError, av.FFmpegError) as error:
        raise IntegrityError(
            f"{path.name} cannot be decoded: {type(error).__name__}", code="media_unreadable"
        ) from None
    if not found.frames:
        raise IntegrityError(f"{path.name} holds no frame", code="media_unreadable")
    return found


def _image(path: Path, box: tuple[int, int]) -> Glimpse:
    with Image.open(path) as opened:
        size = opened.size
        opened.draft("RGB", box)  # a large JPEG is decoded at reduced size at once
        image = ImageOps.exif_transpose(opened).convert("RGB")
    image.thumbnail(box, Image.Resampling.LANCZOS)
    return Glimpse(size, (Frame(image),))


def _video(path: Path, count: int, box: tuple[int, int]) -> Glimpse:
    with av.open(str(path)) as container:
        stream = next(iter(container.streams.video), None)
        if stream is None:
            return Glimpse((0, 0), ())
        total = min(stream.frames or _count(path), MAX_FRAMES_DECODED)
        wanted = _spread(total, count)
        rate = stream.average_rate or Fraction(1)
        frames: list[Frame] = []
        for index, frame in enumerate(container.decode(stream)):
            if index in wanted:
                image = frame.to_image()
                image.thumbnail(box, Image.Resampling.LANCZOS)
                frames.append(Frame(image, float(index / rate)))
            if index >= max(wanted, default=0):
                break
        return Glimpse((stream.width, stream.height), tuple(frames))


def _count(path: Path) -> int:
    """Packets of the video stream, for containers that don't say how many frames they hold."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        return sum(1 for packet in container.demux(stream) if packet.size)


def _spread(total: int, count: int) -> frozenset[int]:
    """`count` indexes from 0 to total - 1, evenly, without repeats."""
    if total <= 0 or count <= 0:
        return frozenset({0})
    if count == 1 or total == 1:
        return frozenset({0})
    return frozenset(round(i * (total - 1) / (count - 1)) for i in range(count))
