"""Media of a sample: pixel sizes, frame counts, transfer hints, and what a request promises its client.

A hint is active when its object is present, `{}` included. Hints are iterated in the order of `modes.HINTS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from cosmos3_serve.contract.limits import MAX_URI_CHARS
from cosmos3_serve.contract.modes import ACTION_MODES, HINTS, ModelMode, implicit_mode, is_image_category, suffix_of


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

# Keys that `image_size` of an action sample may name.
ACTION_IMAGE_SIZES: Final = frozenset({256, 480, 704, 720, 768, 1080, 1280, 2048})

TEMPORAL_COMPRESSION: Final = 4


def size_of(resolution: str | None, aspect_ratio: str | None) -> tuple[int, int] | None:
    """(width, height) in pixels, or None when either key is missing: then the size follows the input media."""
    if resolution is None or aspect_ratio is None:
        return None
    return SIZES.get(resolution, {}).get(aspect_ratio)


def round_frames(num_frames: int) -> int:
    """Smallest 4k+1 that is at least `num_frames`; the framework rounds up, never down."""
    return -(-(num_frames - 1) // TEMPORAL_COMPRESSION) * TEMPORAL_COMPRESSION + 1


def latent_frames(num_frames: int) -> int:
    """Latent frames of a clip of `num_frames` pixel frames."""
    return (num_frames - 1) // TEMPORAL_COMPRESSION + 1


Uri = Annotated[str, Field(max_length=MAX_URI_CHARS)]


class EdgeThreshold(StrEnum):
    VERY_LOW = "very_low"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    VERY_HIGH = "very_high"


class BlurStrength(StrEnum):
    NONE = "none"
    VERY_LOW = "very_low"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    VERY_HIGH = "very_high"


class Hint(BaseModel):
    """Hint of kind depth, seg or wsm.

    Attributes:
        control_path: control image or clip; None asks for one computed from `vision_path` (edge and blur only).
        weight: share among several hints, normalised to sum 1; None means 1.0.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    control_path: Uri | None = None
    # Upstream takes a negative weight here and dies on it later; refused at the door instead.
    weight: Annotated[float, Field(ge=0)] | None = None


class EdgeHint(Hint):
    """Edge hint; the preset picks the Canny thresholds of a control computed from `vision_path`."""

    preset_edge_threshold: EdgeThreshold | None = None


class BlurHint(Hint):
    """Blur hint; the preset picks the blur of a control computed from `vision_path`."""

    preset_blur_strength: BlurStrength | None = None


@dataclass(frozen=True, slots=True)
class Requested:
    """One requested sample.

    Attributes:
        mode: given or implied.
        seed: None when the server draws it.
        hints: active transfer hints.
        is_image: whether one frame is asked for.
    """

    name: str
    mode: str
    seed: object
    hints: frozenset[str]
    is_image: bool

    @property
    def is_text(self) -> bool:
        return self.mode == ModelMode.REASONER and not self.hints


def active_hints(args: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(hint for hint in HINTS if args.get(hint) is not None)


def requested(sample: Mapping[str, Any]) -> Requested:
    """The promise of one prepared sample.

    Raises:
        ValueError: the mode cannot be inferred from `vision_path`.
    """
    frames = sample.get("num_frames")
    mode = sample.get("model_mode")
    if mode is None:
        vision = sample.get("vision_path")
        mode = implicit_mode(None if vision is None else suffix_of(vision), frames)
    hints = active_hints(sample)
    return Requested(sample["name"], mode, sample.get("seed"), hints, is_image_category(frames, hints, mode))


def expected_frames(args: Mapping[str, Any]) -> int | None:
    """Frames that the primary media of a result must show, from its resolved `args`; None where the input media
    decide (transfer clips)."""
    frames = args.get("num_frames")
    if not isinstance(frames, int) or (active_hints(args) and frames != 1):
        return None
    chunk = args.get("action_chunk_size")
    if args.get("model_mode") in ACTION_MODES:
        return chunk + 1 if isinstance(chunk, int) else None
    return frames


def expected_size(args: Mapping[str, Any]) -> tuple[int, int] | None:
    """(width, height) in pixels of the primary media; None where the input media decide (action, no given size)."""
    if args.get("model_mode") in ACTION_MODES:
        return None
    resolution, aspect = args.get("resolution"), args.get("aspect_ratio")
    if not isinstance(resolution, str) or not isinstance(aspect, str):
        return None
    return size_of(resolution, aspect)
