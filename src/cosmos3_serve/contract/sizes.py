"""Pixel sizes: resolution key and aspect ratio to width and height (source: framework section 4)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Resolution(StrEnum):
    """Resolution keys of the pinned framework with `COSMOS_TRAINING=0`; strings on the wire, never numbers."""

    R256 = "256"
    R480 = "480"
    R720 = "720"
    R768 = "768"
    R1080 = "1080"


class AspectRatio(StrEnum):
    """Aspect ratios, width then height, comma-delimited as upstream spells them."""

    SQUARE = "1,1"
    LANDSCAPE_4_3 = "4,3"
    PORTRAIT_3_4 = "3,4"
    LANDSCAPE_16_9 = "16,9"
    PORTRAIT_9_16 = "9,16"


# (width, height) in pixels. 704 exists for action tiers only.
SIZES: Final[dict[str, dict[str, tuple[int, int]]]] = {
    "256": {"1,1": (256, 256), "4,3": (320, 256), "3,4": (256, 320), "16,9": (320, 192), "9,16": (192, 320)},
    "480": {"1,1": (640, 640), "4,3": (736, 544), "3,4": (544, 736), "16,9": (832, 480), "9,16": (480, 832)},
    "704": {"1,1": (960, 960), "4,3": (1088, 832), "3,4": (832, 1088), "16,9": (1280, 704), "9,16": (704, 1280)},
    "720": {"1,1": (960, 960), "4,3": (1104, 832), "3,4": (832, 1104), "16,9": (1280, 720), "9,16": (720, 1280)},
    "768": {"1,1": (1024, 1024), "4,3": (1184, 880), "3,4": (880, 1184), "16,9": (1360, 768), "9,16": (768, 1360)},
    "1080": {"1,1": (1440, 1440), "4,3": (1664, 1248), "3,4": (1248, 1664), "16,9": (1920, 1080), "9,16": (1080, 1920)},
}

# Keys that `image_size` of an action sample may name (source: framework section 1f).
ACTION_IMAGE_SIZES: Final = frozenset({256, 480, 704, 720, 768, 1080, 1280, 2048})

TEMPORAL_COMPRESSION: Final = 4


def size_of(resolution: str | None, aspect_ratio: str | None) -> tuple[int, int] | None:
    """(width, height) in pixels, or None when either key is missing: then the size follows the input media."""
    if resolution is None or aspect_ratio is None:
        return None
    return SIZES.get(resolution, {}).get(aspect_ratio)


def round_frames(num_frames: int) -> int:
    """Smallest 4k+1 that is at least `num_frames`; the framework rounds up, never down (source: section 3)."""
    return -(-(num_frames - 1) // TEMPORAL_COMPRESSION) * TEMPORAL_COMPRESSION + 1


def latent_frames(num_frames: int) -> int:
    """Latent frames of a clip of `num_frames` pixel frames."""
    return (num_frames - 1) // TEMPORAL_COMPRESSION + 1
