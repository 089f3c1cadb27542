"""What an image costs a replica: its size after resizing, tokens, and bytes in the processor's cache."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmos3_serve.reasoner.media.info import MediaInfo


@dataclass(frozen=True, slots=True)
class ImageProcessor:
    """A model's `preprocessor_config.json`, as far as it decides about tokens; edges are numbers of pixels."""

    patch_size: int = 16
    temporal_patch_size: int = 2
    merge_size: int = 2
    shortest_edge: int = 65_536
    longest_edge: int = 16_777_216

    @classmethod
    def load(cls, checkpoint: Path) -> ImageProcessor:
        """Read a checkpoint's config. Blocking. Raises OSError or ValueError where there is none, or no JSON."""
        value = json.loads((checkpoint / "preprocessor_config.json").read_bytes())
        size = value.get("size") or {}
        known = {k: value[k] for k in ("patch_size", "temporal_patch_size", "merge_size") if value.get(k) is not None}
        return cls(**known, **{k: size[k] for k in ("shortest_edge", "longest_edge") if k in size})


@dataclass(frozen=True, slots=True)
class PictureCost:
    """`patch_bytes`: that a replica's processor cache needs for it (32-bit floats)."""

    width: int
    height: int
    tokens: int
    patch_bytes: int


def picture_cost(info: MediaInfo, processor: ImageProcessor, options: Mapping[str, Any]) -> PictureCost:
    """
    Args:
        info: of the image, upright.
        options: the request's, as in `MediaPart.options`.
    """
    kwargs = options.get("mm_processor_kwargs", {})
    kwargs = {**kwargs, **kwargs.get("images_kwargs", {})}
    size = kwargs.get("size") or {}
    least = int(kwargs.get("min_pixels", size.get("shortest_edge", processor.shortest_edge)))
    most = int(kwargs.get("max_pixels", size.get("longest_edge", processor.longest_edge)))
    factor = processor.patch_size * processor.merge_size
    width, height = info.width, info.height
    wide, tall = round(width / factor) * factor, round(height / factor) * factor
    if wide * tall > most:
        shrink = math.sqrt(width * height / most)
        wide = max(factor, math.floor(width / shrink / factor) * factor)
        tall = max(factor, math.floor(height / shrink / factor) * factor)
    elif wide * tall < least:
        grow = math.sqrt(least / (width * height))
        wide, tall = math.ceil(width * grow / factor) * factor, math.ceil(height * grow / factor) * factor
    patches = (wide // processor.patch_size) * (tall // processor.patch_size)
    floats = 3 * processor.temporal_patch_size * processor.patch_size**2
    return PictureCost(wide, tall, patches // processor.merge_size**2, patches * floats * 4)
