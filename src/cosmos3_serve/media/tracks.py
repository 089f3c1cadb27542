"""Which video stream of a file is read: the one a player shows, and not a cover picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cosmos3_serve.media.container import TRUNCATED
from cosmos3_serve.media.refusal import broken


@dataclass(frozen=True, slots=True)
class Track:
    """A video stream: its index in the file, how many could have been read, and why this one, in words (empty: alone).

    `first`: among the file's video streams, covers included, it stands first.
    """

    index: int
    of: int
    why: str
    first: bool


def choose_track(container: Any) -> Track:
    """The default one among the real ones, then the longest, then the first.

    A cover picture (`attached_pic`) is none; a stream of one frame is a real one only where there is no longer one.

    Raises:
        Refused: there is no video stream.
    """
    streams = list(container.streams.video)
    real = [stream for stream in streams if not is_cover(stream)]
    if not real:
        if not len(container.streams):
            raise broken("media_truncated", "the file's index holds no stream: it is cut off or damaged", TRUNCATED)
        what = "only sound" if container.streams.audio else "no video stream (is it complete?)"
        if streams:
            what += " and a cover picture" if container.streams.audio else ", only a cover picture"
        raise broken("media_no_video", f"the file holds {what}", "send a file with a video stream")
    moving = [stream for stream in real if not _one_frame(stream)] or real
    best = max(moving, key=lambda stream: (_default(stream, moving), _length(stream), -stream.index))
    others = len(streams) - 1
    why = ""
    if others:
        reason = (
            "the default one" if _default(best, moving) else "the longest one" if len(moving) > 1 else "the only clip"
        )
        why = f"video stream {best.index} of {len(streams)} was read, {reason}"
    return Track(best.index, len(real), why, best is streams[0])


def is_cover(stream: Any) -> bool:
    from av.stream import Disposition

    return bool(stream.disposition & Disposition.attached_pic)


def _default(stream: Any, among: Sequence[Any]) -> bool:
    """Marked as default, where that tells it from the others."""
    from av.stream import Disposition

    marked = [other for other in among if other.disposition & Disposition.default]
    return stream in marked and len(marked) < len(among)


def _one_frame(stream: Any) -> bool:
    return bool(stream.frames == 1)


def _length(stream: Any) -> float:
    """Seconds as declared; frames where no duration is."""
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return float(stream.frames or 0)
