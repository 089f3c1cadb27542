"""MediaInfo: what a content is, as far as anyone after the gate needs to know."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cosmos3_serve.media.record import MediaRecord
from cosmos3_serve.media.sniff import Kind


@dataclass(frozen=True, slots=True)
class MediaInfo:
    """
    Args:
        mime: by content, never by name.
        container, codec, pixel_format: FFmpeg's names; for images the format and mode.
        width, height: upright, as a replica sees them.
        frames: that a player shows, counted (an image has 1).
        fps: mean rate over the clip (0.0 for images).
        duration_s: frames / fps.
        variable_rate: whether intervals differ by more than a tenth.
        rotation: degrees that the stored frames are turned counter-clockwise for showing: 0, 90, 180 or 270.
        header_frames: as the container declares, None where it does not.
        replica_frames: as a replica's loader counts them (equal to `frames`, or one off).
        has_audio: ignored by the reasoner.
        normalised: why the gate made this copy of another content; empty for an original.
        record: what was read of the file, `MediaRecord.as_dict`; None of a copy.
    """

    kind: Kind
    mime: str
    container: str
    codec: str
    pixel_format: str
    width: int
    height: int
    frames: int
    fps: float
    duration_s: float
    size: int
    variable_rate: bool = False
    rotation: int = 0
    mirrored: bool = False
    header_frames: int | None = None
    replica_frames: int = 1
    has_audio: bool = False
    normalised: tuple[str, ...] = ()
    record: dict[str, Any] | None = None

    @classmethod
    def of(cls, record: MediaRecord, *, header_frames: int | None = None, replica_frames: int = 1) -> MediaInfo:
        """Of an original."""
        return cls(
            kind=record.kind,
            mime=record.mime,
            container=record.container,
            codec=record.codec,
            pixel_format=record.pixel_format,
            width=record.width,
            height=record.height,
            frames=record.frames,
            fps=record.fps,
            duration_s=record.duration_s,
            size=record.size,
            variable_rate=record.variable_rate,
            rotation=record.rotation,
            mirrored=record.mirrored,
            header_frames=header_frames,
            replica_frames=replica_frames,
            has_audio=record.has_audio,
            record=record.as_dict(),
        )

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "normalised": list(self.normalised)}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> MediaInfo:
        return cls(**{**value, "normalised": tuple(value["normalised"])})
