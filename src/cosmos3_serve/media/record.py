"""MediaRecord: what was read of a file and what was done to it, for records, provenance and usage details."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from cosmos3_serve.media.sniff import Kind

_TUPLES = ("conversions", "notes")


@dataclass(frozen=True, slots=True)
class MediaRecord:
    """
    Args:
        mime: by content, never by name.
        container, codec, pixel_format: FFmpeg's names; of pictures Pillow's format and mode.
        size: bytes of the file.
        width, height: as shown: upright, with square pixels.
        stored_width, stored_height: as coded.
        frames: that a player shows (a picture has 1).
        fps: mean rate over the clip; 0.0 for pictures.
        duration_s: frames / fps.
        start_s: when the first frame is shown, after the earliest stream of the file begins.
        variable_rate: intervals differ by more than a tenth.
        track: index of the stream that was read; `tracks`: video streams that could have been.
        bit_depth: bits of one component.
        matrix, range, primaries, transfer: as tagged, by FFmpeg's names; "unspecified" where untagged.
        rotation: degrees that the stored frames are turned counter-clockwise for showing: 0, 90, 180 or 270.
        mirrored: before turning.
        sample_aspect: width to height of one stored pixel, as "64:45".
        alpha: it has transparency.
        interlaced: some frames are two fields, which are shown woven together.
        has_audio: which is not read.
        conversions: what was done to the pixels beyond a plain decoder's work, in words.
        notes: what was chosen, and hints of the container that decoding contradicted, in words.
    """

    kind: Kind
    mime: str
    container: str
    codec: str
    size: int
    width: int
    height: int
    stored_width: int
    stored_height: int
    frames: int = 1
    fps: float = 0.0
    duration_s: float = 0.0
    start_s: float = 0.0
    variable_rate: bool = False
    track: int = 0
    tracks: int = 1
    pixel_format: str = ""
    bit_depth: int = 8
    matrix: str = "unspecified"
    range: str = "unspecified"
    primaries: str = "unspecified"
    transfer: str = "unspecified"
    rotation: int = 0
    mirrored: bool = False
    sample_aspect: str = "1:1"
    alpha: bool = False
    interlaced: bool = False
    has_audio: bool = False
    conversions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), **{name: list(getattr(self, name)) for name in _TUPLES}}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> MediaRecord:
        return cls(**{**value, **{name: tuple(value[name]) for name in _TUPLES}})

    def noted(self, *notes: str) -> MediaRecord:
        return replace(self, notes=(*self.notes, *notes))
