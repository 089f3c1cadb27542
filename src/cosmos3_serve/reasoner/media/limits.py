"""MediaLimits: every number of the media gate in one place (docs/contract.md 9)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from cosmos3_serve.media.limits import GIB, MIB, ReadLimits


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Bytes, pixels, frames, seconds and counts. Everything that is refused is refused with its number.

    Args:
        max_light_bytes: of a body without its media: more text than any context holds.
        max_json_values: values in a body without its media.
        videos_per_message, images_per_message: as a replica is started with.
        videos_per_request, images_per_request: over all messages, for conversations that repeat earlier media.
        max_media_bytes: of one item, decoded.
        max_request_media_bytes: of all items of one request together.
        max_image_pixels, max_frame_pixels: of one image, of one video frame, as the header says before decoding.
        max_video_pixels: frames times pixels: what a replica decodes at worst for one question.
        max_sampled_bytes: RGB bytes of the frames that a replica keeps at once; a replica dies of too many.
        max_aspect: long side over short side (the model's processor refuses 200 and more).
        max_normalise_pixels: frames times pixels that the gate encodes itself; above, the client is told the command.
        full_decode_pixels: up to this every frame is decoded by the probe; above, the ends and the counts are checked.
        drift_s: how far a frame's time may be from index / rate before the clip counts as variable-rate.
    """

    max_body_bytes: int = 64 * MIB
    max_light_bytes: int = 8 * MIB
    max_json_values: int = 500_000
    videos_per_message: int = 1
    images_per_message: int = 8
    videos_per_request: int = 4
    images_per_request: int = 32
    max_media_bytes: int = 512 * MIB
    max_request_media_bytes: int = 1024 * MIB

    fetch_timeout_s: float = 60.0
    connect_timeout_s: float = 10.0
    max_redirects: int = 5
    max_url_chars: int = 8192
    max_fetches: int = 16
    max_waiting: int = 256

    max_image_pixels: int = 64_000_000
    max_frame_pixels: int = 36_000_000
    max_video_pixels: int = 60_000_000_000
    max_sampled_bytes: int = 2 * GIB
    max_frames: int = 250_000
    max_duration_s: float = 3600.0
    min_frames: int = 2
    max_aspect: float = 199.0
    max_normalise_pixels: int = 3_000_000_000
    full_decode_pixels: int = 300_000_000
    drift_s: float = 0.25

    probe_timeout_s: float = 30.0
    normalise_timeout_s: float = 120.0
    probe_workers: int = 2
    probe_memory_bytes: int = 4 * GIB

    def reading(self, *, every_frame: bool = False) -> ReadLimits:
        """What the room `media/` goes by.

        Args:
            every_frame: decode all of a clip, however long it is.
        """
        return ReadLimits(
            max_image_pixels=self.max_image_pixels,
            max_frame_pixels=self.max_frame_pixels,
            max_video_pixels=self.max_video_pixels,
            max_frames=self.max_frames,
            max_duration_s=self.max_duration_s,
            max_aspect=self.max_aspect,
            full_decode_pixels=None if every_frame else self.full_decode_pixels,
            memory_bytes=self.probe_memory_bytes,
        )

    def fingerprint(self) -> str:
        """Of what a verdict depends on: a stored one made under other limits does not count."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]
