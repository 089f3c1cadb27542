"""A sample's pictures and clips, read by the room `media/` in a confined process, with failures as the sample's."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from cosmos3_serve.contract.modes import IMAGE_SUFFIXES
from cosmos3_serve.errors import SampleCode, SampleError, ServiceFailure
from cosmos3_serve.media.geometry import Pixels
from cosmos3_serve.media.limits import ReadLimits
from cosmos3_serve.media.process import MediaReader, ReadCancelled
from cosmos3_serve.media.read import Media, Want
from cosmos3_serve.media.refusal import Refused

Frames = Pixels  # uint8 [T, H, W, 3]
# What conditioning takes at most: 10,000 frames of 1920x1080, which one core decodes in minutes.
LIMITS = ReadLimits()


def invalid(field: str, message: str) -> SampleError:
    return SampleError(SampleCode.INPUT_INVALID, f"{field}: {message}")


@lru_cache(maxsize=1)
def media_reader() -> MediaReader:
    """This process's; its own processes end with it."""
    reader = MediaReader(LIMITS)
    atexit.register(reader.close)
    return reader


@dataclass(frozen=True, slots=True)
class Wanted:
    """One read, before it is done.

    Args:
        path: a staged file; its suffix says whether a picture or a clip is expected, its content must be that.
        field: of the request, for messages.
        size: (width, height) to cover and crop to; None keeps the shown size.
        max_frames: frames to keep, from the start or (`keep="last"`) from the end.
    """

    path: str
    field: str
    size: tuple[int, int] | None = None
    max_frames: int | None = None
    keep: Literal["first", "last"] = "first"

    def read(self, room: int | None = None, cancelled: Callable[[], bool] = lambda: False) -> Media:
        """
        Args:
            room: bytes that the frames may take.
            cancelled: asked while the file is read; ends the read.

        Raises:
            SampleError: `input_invalid` with the reason and a remedy; `cancelled`; `staging_failed` where our disk or
                process fails.
            NoRoom: `room` is not enough.
        """
        kind: Literal["image", "video"] = "image" if Path(self.path).suffix.lower() in IMAGE_SUFFIXES else "video"
        want = Want(kind, self.size, self.max_frames, self.keep, room)
        try:
            return media_reader().read(Path(self.path), want, cancelled)
        except Refused as refused:
            remedy = f" ({refused.remedy})" if refused.remedy else ""
            raise invalid(self.field, refused.message + remedy) from None
        except ReadCancelled:
            raise SampleError(SampleCode.CANCELLED, "cancelled while its media were read") from None
        except ServiceFailure as failure:
            raise SampleError(SampleCode.STAGING_FAILED, f"{self.field}: {failure.detail}") from None


Take = Callable[[Wanted], Media]
