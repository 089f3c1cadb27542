"""Read a picture or a clip into frames: the one function for pixels, for every service.

Runs in the process that reads media (`worker.py`); `process.py` asks that process.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cosmos3_serve.media.colour import Colour, describe, to_rgb
from cosmos3_serve.media.geometry import Pixels
from cosmos3_serve.media.limits import MIB, ReadLimits
from cosmos3_serve.media.record import MediaRecord
from cosmos3_serve.media.refusal import broken, too_large
from cosmos3_serve.media.sniff import HEAD_BYTES, Kind, Sniffed, check_sniffed, sniff
from cosmos3_serve.media.still import CROPPED, read_still
from cosmos3_serve.media.video import VideoFacts, check_pixels, read_video

HELD_RAW_BYTES = 512 * MIB  # of decoded frames that wait to be the last ones; above, each is converted as it comes


@dataclass(frozen=True, slots=True)
class Want:
    """
    Args:
        kind: image or video; None takes either.
        size: (width, height) to cover and crop to; None keeps the shown size.
        max_frames: frames to keep, from the start or the end; None keeps all.
        room: bytes that the frames may take, if less than the limits allow.
    """

    kind: Kind | None = None
    size: tuple[int, int] | None = None
    max_frames: int | None = None
    keep: Literal["first", "last"] = "first"
    room: int | None = None


@dataclass(frozen=True, slots=True)
class Media:
    """
    Args:
        frames: uint8 [T, H, W, 3], sRGB, upright, square pixels.
        times_s: when each of them is shown, after the clip's first frame.
        fps: of the clip; 1.0 of a picture.
    """

    frames: Pixels
    times_s: tuple[float, ...]
    fps: float
    record: MediaRecord


Allocate = Callable[[tuple[int, ...]], Pixels]


def _empty(shape: tuple[int, ...]) -> Pixels:
    frames: Pixels = np.empty(shape, np.uint8)
    return frames


class NoRoom(Exception):
    """The frames take more bytes than `Want.room`; no verdict on the file."""


def read_media(path: Path, want: Want, limits: ReadLimits, *, allocate: Allocate = _empty) -> Media:
    """
    Args:
        allocate: makes the array of the frames, uint8 of a shape.

    Raises:
        Refused: the file is not what it should be, too large, damaged or not all there.
        NoRoom: `want.room` is not enough.
        OSError: the disk, not the file.
    """
    sniffed = sniffed_as(path, want.kind)
    if sniffed.kind == "image" and not (sniffed.name == "gif" and want.kind == "video"):
        rgb, record = read_still(path, sniffed, limits)
        shown = cover(rgb, want.size)
        if want.room is not None and shown.nbytes > want.room:
            raise NoRoom
        frames = allocate((1, *shown.shape))
        frames[0] = shown
        return Media(frames, (0.0,), 1.0, record)
    keeper = _Keeper(want, limits, allocate)
    facts = read_video(path, sniffed, limits, keeper.take)
    return keeper.media(facts, sniffed)


def sniffed_as(path: Path, kind: Kind | None) -> Sniffed:
    """
    Raises:
        Refused: the content is not of that kind, or of no kind that is taken.
    """
    with path.open("rb") as file:
        sniffed = sniff(file.read(HEAD_BYTES))
    check_sniffed(sniffed, kind or ("image" if sniffed.kind == "image" else "video"))
    return sniffed


def video_record(facts: VideoFacts, sniffed: Sniffed, colour: Colour) -> MediaRecord:
    times = facts.timeline()
    width, height = facts.geometry.shown(facts.width, facts.height)
    aspect = facts.geometry.aspect
    notes = [facts.track.why] if facts.track.why else []
    if facts.flagged:
        notes.append(f"{facts.flagged} packets are marked as damaged; every frame decodes")
    if facts.header_frames is not None and facts.header_frames != facts.stored:
        notes.append(f"the header counts {facts.header_frames} frames, the file holds {facts.stored}")
    return MediaRecord(
        kind="video",
        mime=sniffed.mime,
        container=facts.container,
        codec=facts.codec,
        size=facts.size,
        width=width,
        height=height,
        stored_width=facts.width,
        stored_height=facts.height,
        frames=facts.frames,
        fps=times.fps,
        duration_s=facts.frames / times.fps,
        start_s=times.start_s,
        variable_rate=not times.even,
        track=facts.track.index,
        tracks=facts.track.of,
        pixel_format=facts.pixel_format,
        bit_depth=colour.bit_depth,
        matrix=colour.matrix,
        range=colour.range,
        primaries=colour.primaries,
        transfer=colour.transfer,
        rotation=facts.geometry.rotation,
        mirrored=facts.geometry.mirrored,
        sample_aspect=f"{aspect.numerator}:{aspect.denominator}",
        alpha=colour.alpha,
        interlaced=facts.interlaced,
        has_audio=facts.has_audio,
        conversions=(*colour.conversions, *facts.geometry.conversions),
        notes=tuple(notes),
    )


def cover(rgb: Pixels, size: tuple[int, int] | None) -> Pixels:
    """[H, W, 3] resized so that it just covers (width, height), its aspect kept, and the centre cropped.

    Raises:
        Refused: `media_aspect_extreme`: a sliver that would be blown up.
    """
    height, width = rgb.shape[:2]
    if size is None or size == (width, height):
        return rgb
    from PIL import Image

    scale = max(size[0] / width, size[1] / height)
    wide, high = math.ceil(scale * width), math.ceil(scale * height)
    if wide * high > ReadLimits().max_frame_pixels:
        raise broken("media_aspect_extreme", f"an aspect of {width}:{height} is too extreme", CROPPED)
    left, top = round((wide - size[0]) / 2), round((high - size[1]) / 2)
    image = Image.fromarray(rgb).resize((wide, high), Image.Resampling.BILINEAR)
    cropped: Pixels = np.asarray(image.crop((left, top, left + size[0], top + size[1])), dtype=np.uint8)
    return cropped


class _Keeper:
    """Takes every decoded frame, and keeps and converts those that are wanted."""

    def __init__(self, want: Want, limits: ReadLimits, allocate: Allocate) -> None:
        self._want, self._limits, self._allocate = want, limits, allocate
        self._last = want.keep == "last" and want.max_frames is not None
        self._frames: deque[Any] = deque(maxlen=want.max_frames if self._last else None)
        self._raw = False
        self._bytes = 0

    def take(self, frame: Any, facts: VideoFacts) -> None:
        if facts.decoded == 1:
            self._frames.clear()  # of a track that turned out to be a cover
            self._raw = self._last and (self._want.max_frames or 0) * _raw_bytes(frame) <= HELD_RAW_BYTES
            width, height = self._want.size or facts.geometry.shown(frame.width, frame.height)
            check_pixels(width, height, self._limits.max_frame_pixels, "frame")
            self._bytes = width * height * 3
        if not self._last and self._want.max_frames is not None and len(self._frames) >= self._want.max_frames:
            return  # what is left is decoded all the same, to know that it is there
        self._check_room(len(self._frames) + 1)
        self._frames.append(frame if self._raw else self._shown(frame, facts))

    def _check_room(self, frames: int) -> None:
        if self._frames.maxlen is not None:
            frames = min(frames, self._frames.maxlen)
        if self._want.room is not None and frames * self._bytes > self._want.room:
            raise NoRoom
        if frames * self._bytes > self._limits.max_kept_bytes:
            raise too_large(
                "media_too_large",
                f"more than {self._limits.max_kept_bytes} bytes of frames",
                "send a shorter clip, a smaller resolution or fewer max_frames",
            )

    def _shown(self, frame: Any, facts: VideoFacts) -> Pixels:
        return cover(facts.geometry.upright(to_rgb(frame, describe(frame))), self._want.size)

    def media(self, facts: VideoFacts, sniffed: Sniffed) -> Media:
        record = video_record(facts, sniffed, describe(facts.first))
        times = facts.timeline().times_s
        count = len(self._frames)
        kept = times[-count:] if self._last else times[:count]
        if self._last:
            record = record.noted(f"the last {count} frames were used")
        frames = self._allocate((count, *self._size(facts), 3))
        for index in range(count):  # one by one, so that each is held once
            one = self._frames.popleft()
            frames[index] = self._shown(one, facts) if self._raw else one
        return Media(frames, kept, record.fps, record)

    def _size(self, facts: VideoFacts) -> tuple[int, int]:
        width, height = self._want.size or facts.geometry.shown(facts.width, facts.height)
        return height, width


def _raw_bytes(frame: Any) -> int:
    return sum(int(plane.buffer_size) for plane in frame.planes)
