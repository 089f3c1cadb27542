"""ReplicaDecoder: what the decoder inside a replica gets right by itself, so that the gate repairs the rest.

Found by running vLLM 0.32's own loader (OpenCV 5.0 headless, libavcodec 62.28) over one clip of each kind:

    H.264 (8 and 10 bit, 4:2:0 and 4:4:4), H.265, VP8, VP9, MPEG-4, MPEG-2, MJPEG, ProRes, FFV1, GIF   every frame
    AV1                            no frame at all: hardware decoding only
    MPEG-TS                        none or some frames: its seek to the end and back does not return to the start
    1 frame                        no frame, for the same reason
    quarter turns                  turned upright, sizes swapped
    interlaced                     black: its scaler refuses such frames
    mirrored                       taken for a half turn: upside down
    other angles                   ignored
    variable rate                  frames are picked by index and timed by index / mean rate, so times are wrong
    header counts too many frames  corrected by the loader
    header counts too few frames   believed: the rest of the clip is never seen
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ReplicaDecoder:
    """
    Args:
        name: enters the rules' fingerprint.
        containers, codecs: that decode completely and seek correctly.
        turns_upright: whether it applies quarter turns.
    """

    name: str = "opencv-5"
    containers: frozenset[str] = frozenset({"mp4", "matroska", "avi", "gif"})
    codecs: frozenset[str] = frozenset(
        ("h264", "hevc", "vp8", "vp9", "mpeg4", "mpeg2video", "mpeg1video", "mjpeg", "prores", "ffv1", "gif")
    )
    turns_upright: bool = True

    def as_dict(self) -> dict[str, Any]:
        return {k: sorted(v) if isinstance(v, frozenset) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> ReplicaDecoder:
        sets = {k: frozenset(v) for k, v in value.items() if isinstance(v, list)}
        return cls(**{**value, **sets})
