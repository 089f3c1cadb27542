"""Frame options: which frames of a video a client asks for, obeyed exactly or refused.

The same four options come in three places: `media_io_kwargs.video`, which a replica's loader reads, and flat or under
`videos_kwargs` in `mm_processor_kwargs`, which its processor reads. A replica ignores most of them: the loader knows no
`num_frames`, and the processor samples only where the loader has kept every frame of the clip. So they are taken out of
the request here, resolved into one rule, checked against the clip, and sent on as the loader's own options, with the
processor's sampling switched off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cosmos3_serve.errors import FieldError, InputError, InvalidRequest
from cosmos3_serve.media.refusal import COMMAND, Refused
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.sampling import (
    LOADER_MAX_FPS,
    LOADER_MAX_FRAMES,
    LOADER_MIN_FRAMES,
    loaded_frames,
)

LEAST_FRAMES = 2  # a token spans two frames: the processor takes no fewer
FRAME_OPTIONS = ("fps", "num_frames", "min_frames", "max_frames")
EVERY = -1  # `num_frames`: no number; every frame, where nothing else limits them
REMEDY = "send options as docs/reasoner.md lists them under 'Frames of a video'"
_NEARLY = 1.01  # 30 frames a second of a clip of 29.97 are all of its frames


class OptionRefused(Refused):
    """Args: fields: the options at fault, as paths in the body; they are what the error names, not the part."""

    def __init__(self, fields: tuple[str, ...], message: str, remedy: str = "") -> None:
        super().__init__(400, "media_option_invalid", message, remedy)
        self.fields = fields

    def as_error(self, param: str) -> InputError:
        message = f"{param}: {self.message}" if param else self.message
        remedy = REMEDY if not self.remedy else self.remedy
        found = tuple(FieldError(field, message, remedy) for field in self.fields)
        return InvalidRequest(message, remedy=remedy, code="media_option_invalid", errors=found)


@dataclass(frozen=True, slots=True)
class FrameRule:
    """How many frames, evenly spread with both ends: `fps` (the loader's 2 where None) times the clip's duration,
    within `least` and `most`."""

    fps: float | None
    least: int
    most: int

    def as_options(self) -> dict[str, Any]:
        """For the loader, as `media_io_kwargs.video`."""
        pace = {} if self.fps is None else {"fps": self.fps}
        return {**pace, "min_frames": self.least, "max_frames": self.most}

    def count(self, info: MediaInfo) -> int:
        return loaded_frames(info.replica_frames, info.fps, {"media_io_kwargs": self.as_options()})


@dataclass(frozen=True, slots=True)
class FrameOptions:
    """
    Args:
        fps: frames per second of the clip.
        num_frames: exactly so many, or `EVERY`.
        min_frames, max_frames: bounds of what `fps`, the client's or the model's, gives.
        fields: option -> where the client has set it.
    """

    fps: float | None = None
    num_frames: int | None = None
    min_frames: int | None = None
    max_frames: int | None = None
    fields: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def resolve(cls, given: Iterable[tuple[str, Mapping[str, Any]]]) -> FrameOptions | None:
        """One meaning of what stands in several places; None where nothing does.

        Args:
            given: path of each place, and what stands there (other keys are left alone).

        Raises:
            OptionRefused: two options contradict each other; both are named.
        """
        found: dict[str, Any] = {}
        fields: dict[str, str] = {}
        for place, values in given:
            for name in FRAME_OPTIONS:
                value = values.get(name)
                if value is None:
                    continue
                path = f"{place}.{name}"
                if name not in found or found[name] == EVERY:
                    found[name], fields[name] = value, path
                elif value not in (found[name], EVERY):
                    message = f"{fields[name]} is {found[name]} and {path} is {value}"
                    raise OptionRefused((fields[name], path), message, "send one of them")
        if "fps" in found and found.get("num_frames") == EVERY:
            del found["num_frames"], fields["num_frames"]
        options = cls(**found, fields=fields)
        options._check()
        return options if found else None

    def _check(self) -> None:
        if self.num_frames is not None and self.fps is not None:
            raise self._refused(
                ("num_frames", "fps"), "num_frames and fps both say how many frames", "send one of them"
            )
        least, most = self.min_frames or 1, self.max_frames or LOADER_MAX_FRAMES
        if least > most:
            raise self._refused(("min_frames", "max_frames"), f"min_frames is {least} and max_frames is {most}")
        if self.num_frames is None or self.num_frames == EVERY:
            return
        if self.num_frames > most:
            raise self._refused(("num_frames", "max_frames"), f"num_frames is {self.num_frames}, max_frames {most}")
        if self.num_frames < least:
            raise self._refused(("num_frames", "min_frames"), f"num_frames is {self.num_frames}, min_frames {least}")

    def rule(self, info: MediaInfo) -> FrameRule:
        """What a replica is to do with this clip.

        Args:
            info: of the content that the replica gets.

        Raises:
            OptionRefused: the clip cannot give it.
        """
        has = min(info.replica_frames, info.frames)
        if self.min_frames is not None and self.min_frames > has:
            raise self._too_many_for(info, "min_frames", self.min_frames, has)
        if self.num_frames == EVERY:
            if self.max_frames is None and has > LOADER_MAX_FRAMES:
                raise self._refused(
                    ("num_frames",),
                    f"the video has {has} frames, and at most {LOADER_MAX_FRAMES} are taken",
                    f"send num_frames of at most {LOADER_MAX_FRAMES}, fps, or max_frames besides",
                )
            most = self.max_frames or LOADER_MAX_FRAMES
            return FrameRule(None, most, most)
        if self.num_frames is not None:
            if self.num_frames > has:
                raise self._too_many_for(info, "num_frames", self.num_frames, has)
            return FrameRule(None, self.num_frames, self.num_frames)
        # A client that names a pace gets it: the model's least number of frames is for those that name none.
        least = LOADER_MIN_FRAMES if self.fps is None else LEAST_FRAMES
        least = max(self.min_frames if self.min_frames is not None else least, LEAST_FRAMES)
        most = self.max_frames or LOADER_MAX_FRAMES
        if self.fps is not None:
            self._check_pace(self.fps, info)
        return FrameRule(self.fps, min(least, most), most)

    def _check_pace(self, fps: float, info: MediaInfo) -> None:
        if fps > min(info.fps, LOADER_MAX_FPS) * _NEARLY:
            limit = min(info.fps, LOADER_MAX_FPS)
            raise self._refused(
                ("fps",),
                f"fps is {fps:g} and the video has {info.fps:g} frames a second",
                f"send fps of at most {limit:g}, num_frames of at most {info.replica_frames}, or neither",
            )
        count, seconds = int(info.replica_frames / info.fps * fps), info.replica_frames / info.fps
        if count < LEAST_FRAMES and self.min_frames is None:
            least = math.ceil(LEAST_FRAMES / seconds * 1000) / 1000
            raise self._refused(
                ("fps",),
                f"fps {fps:g} is {count} frame(s) of a video of {seconds:.2f} s, of which {LEAST_FRAMES} are needed",
                f"send fps of at least {least:g}, or min_frames besides",
            )
        if count > LOADER_MAX_FRAMES and self.max_frames is None:
            most = math.floor(LOADER_MAX_FRAMES / seconds * 1000) / 1000
            raise self._refused(
                ("fps",),
                f"fps {fps:g} is {count} frames of a video of {seconds:.0f} s, of which {LOADER_MAX_FRAMES} are taken",
                f"send fps of at most {most:g}, or max_frames besides",
            )

    def check_obeyed(self, rule: FrameRule, used: int, info: MediaInfo) -> None:
        """
        Raises:
            OptionRefused: the container counts a frame that cannot be shown, and a replica would use one less.
        """
        if used != rule.count(info):
            raise self._refused(
                tuple(self.fields),
                f"the container counts {info.replica_frames} frames and shows {info.frames}: the last cannot be had",
                f"leave the option out, or re-encode the video: {COMMAND}",
            )

    def _too_many_for(self, info: MediaInfo, name: str, value: int, has: int) -> OptionRefused:
        seen = f"the video has {has} frames"
        if info.normalised:
            seen += f" as replicas get it ({', '.join(info.normalised)})"
        return self._refused((name,), f"{name} is {value} and {seen}", f"send {name} of at most {has}, or leave it out")

    def _refused(self, names: tuple[str, ...], message: str, remedy: str = "send one of them") -> OptionRefused:
        return OptionRefused(tuple(self.fields[name] for name in names if name in self.fields), message, remedy)
