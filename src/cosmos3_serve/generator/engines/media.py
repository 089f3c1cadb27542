"""Read conditioning images and clips: upright, in RGB, at the wanted size, within bounds, or a clear refusal.

Files come from strangers. A name proves nothing, a header may lie about the size, a stream may break off or never end;
each of these ends in a `SampleError` of code `input_invalid` that names the field, and never in an unbounded array.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from cosmos3_serve.errors import SampleCode, SampleError

MAX_PIXELS = 64 * 1024 * 1024  # of one frame as stored
MAX_DECODED_FRAMES = 100_000  # read and dropped frames count too
MAX_CLIP_BYTES = 4 * 1024**3  # of one clip at its final size
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP")  # Pillow knows formats that nobody asked for and that parse worse
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp"})

Frames = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Clip:
    """Frames [T, H, W, 3] uint8 and frames per second; a still image has one frame and 1.0 (as upstream has it)."""

    frames: Frames
    fps: float


class NoRoom(Exception):
    """The frames take more bytes than the caller has room for; no verdict on the file."""


def invalid(field: str, message: str) -> SampleError:
    return SampleError(SampleCode.INPUT_INVALID, f"{field}: {message}")


def is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES


def read_media(
    path: Path,
    field: str,
    *,
    size: tuple[int, int] | None = None,
    max_frames: int | None = None,
    keep: Literal["first", "last"] = "first",
    room: int | None = None,
) -> Clip:
    """Read an image or a clip by its extension.

    Args:
        field: name of the request's field, for messages.
        size: (width, height) to cover and crop to; None keeps the stored size.
        max_frames: frames to keep, from the start or (`keep="last"`) from the end.
        room: bytes that the frames may take.

    Raises:
        SampleError: `input_invalid`.
        NoRoom: `room` is not enough.
    """
    if is_image(path):
        if room is not None and room <= 0:
            raise NoRoom
        still = _frame(read_image(path, field), size, field)
        return Clip(still[None], 1.0)
    kept: deque[Frames] = deque(maxlen=max_frames if keep == "last" else None)
    stored = 0
    video = _Video(path, field)
    for image in video.frames():
        frame = _frame(image, size, field)
        stored += frame.nbytes if kept.maxlen is None or len(kept) < kept.maxlen else 0
        if room is not None and stored > room:
            raise NoRoom
        if stored > MAX_CLIP_BYTES:
            raise invalid(
                field,
                f"more than {MAX_CLIP_BYTES // 1024**3} GiB of frames at {frame.shape[1]}x{frame.shape[0]};"
                " send a shorter clip, a smaller resolution or fewer max_frames",
            )
        if kept and frame.shape != kept[0].shape:
            raise invalid(field, "the frame size changes within the clip")
        kept.append(frame)
        if keep == "first" and len(kept) == max_frames:
            break
    if not kept:
        raise invalid(field, "the video holds no frame that can be decoded")
    return Clip(np.stack(kept), video.fps)


def read_image(path: Path, field: str) -> Image.Image:
    """The image upright (EXIF) and in RGB.

    Raises:
        SampleError: `input_invalid`.
    """
    try:
        with Image.open(path, formats=IMAGE_FORMATS) as stored:
            _check_pixels(stored.width, stored.height, field)
            upright: Image.Image = ImageOps.exif_transpose(stored)
            return upright.convert("RGB")
    except SampleError:
        raise
    except UnidentifiedImageError:
        raise invalid(field, "the file is no PNG, JPEG or WebP image") from None
    except Image.DecompressionBombError:
        raise invalid(field, f"the image exceeds {MAX_PIXELS // 1024**2} megapixels") from None
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise whatever their parsing trips over
        raise invalid(field, f"the image is damaged ({type(error).__name__})") from None


def cover(image: Image.Image, width: int, height: int, field: str) -> Image.Image:
    """Resize so that the image just covers width x height, keeping its aspect, and crop the centre."""
    if image.size == (width, height):
        return image
    scale = max(width / image.width, height / image.height)
    wide, high = math.ceil(scale * image.width), math.ceil(scale * image.height)
    if wide * high > MAX_PIXELS:  # a sliver blown up to cover the canvas
        raise invalid(field, f"aspect ratio {image.width}:{image.height} is too extreme")
    left, top = round((wide - width) / 2), round((high - height) / 2)
    resized = image.resize((wide, high), Image.Resampling.BILINEAR)
    return resized.crop((left, top, left + width, top + height))


def _frame(image: Image.Image, size: tuple[int, int] | None, field: str) -> Frames:
    frame: Frames = np.asarray(cover(image, *size, field) if size else image, dtype=np.uint8)
    return frame


def _check_pixels(width: int, height: int, field: str) -> None:
    if width < 1 or height < 1:
        raise invalid(field, "the file says that it has no pixels")
    if width * height > MAX_PIXELS:
        raise invalid(field, f"{width}x{height} exceeds {MAX_PIXELS // 1024**2} megapixels")


class _Video:
    """The first video stream of a file. `fps` is known once the first frame was read."""

    def __init__(self, path: Path, field: str) -> None:
        self._path = path
        self._field = field
        self.fps = 0.0

    def frames(self) -> Iterator[Image.Image]:
        import av

        try:
            container: Any = av.open(str(self._path), mode="r", metadata_errors="replace")
        except (av.FFmpegError, OSError, ValueError) as error:
            raise invalid(self._field, f"the file is no readable video ({type(error).__name__})") from None
        with container:
            if not container.streams.video:
                raise invalid(self._field, "the file holds no video stream")
            stream = container.streams.video[0]
            _check_pixels(stream.width, stream.height, self._field)
            stream.thread_type = "AUTO"
            self.fps = float(stream.average_rate or stream.guessed_rate or 0)
            if not 0 < self.fps <= 1000:
                raise invalid(self._field, "the video declares no usable frame rate")
            count = 0
            try:
                for frame in container.decode(stream):
                    count += 1
                    if count > MAX_DECODED_FRAMES:
                        raise invalid(self._field, f"more than {MAX_DECODED_FRAMES} frames")
                    _check_pixels(frame.width, frame.height, self._field)
                    yield _upright(frame)
            except (av.FFmpegError, ValueError) as error:
                # A tail that broke off is no reason to invent what the sender meant by it.
                raise invalid(
                    self._field, f"the video is damaged after {count} frames ({type(error).__name__})"
                ) from None


def _upright(frame: Any) -> Image.Image:
    """The frame in RGB, turned as its display matrix says."""
    image: Image.Image = frame.to_image()
    quarter = round(getattr(frame, "rotation", 0) / 90) % 4
    turns = {1: Image.Transpose.ROTATE_90, 2: Image.Transpose.ROTATE_180, 3: Image.Transpose.ROTATE_270}
    return image.transpose(turns[quarter]) if quarter else image
