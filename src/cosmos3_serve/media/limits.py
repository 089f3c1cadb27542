"""ReadLimits: what one file may cost, in pixels, frames, seconds and bytes.

Everything that is refused is refused with its number.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

MIB = 1024 * 1024
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """
    Args:
        max_image_pixels, max_frame_pixels: of one picture, of one video frame, by the header's word before decoding and
            by each decoded frame's.
        max_video_pixels: frames times pixels of one clip, dropped frames included.
        max_aspect: long side over short side, as shown.
        max_packets: of all streams of a file.
        max_kept_bytes: of the frames that one read returns.
        full_decode_pixels: frames times pixels up to which every frame is decoded; None: every clip is. Above it,
            counts and both ends are checked.
        timeout_s: of one read.
        memory_bytes: address space of the process that reads.
    """

    max_image_pixels: int = 64 * MIB
    max_frame_pixels: int = 64 * MIB
    max_video_pixels: int = 20_000_000_000
    max_frames: int = 100_000
    max_duration_s: float = 3600.0
    max_aspect: float = 199.0
    max_packets: int = 2_000_000
    max_kept_bytes: int = 4 * GIB
    full_decode_pixels: int | None = None
    timeout_s: float = 180.0
    memory_bytes: int = 8 * GIB

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
