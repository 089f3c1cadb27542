"""Transfer hints: control media that steer a generation (source: framework section 1h).

A hint is active when its object is present, `{}` included. Iterated always in the order of `modes.HINTS`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from cosmos3_serve.contract.limits import MAX_URI_CHARS

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
