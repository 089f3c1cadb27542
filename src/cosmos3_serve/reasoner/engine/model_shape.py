"""ModelShape: the numbers of a checkpoint from which tokens, cache bytes and limits follow."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmos3_serve.errors import CheckpointUnavailable

FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class ModelShape:
    """
    Args:
        patch, merge, temporal: side of a patch in pixels, patches merged per side, frames merged into one.
        max_video_pixels: frames times pixels to which the processor scales a video down.
        embedding_width: numbers that the vision tower gives per token: one embedding, and one per deep-stack level.
        kv_numbers: numbers that one token keeps in the attention cache, over all layers.
        quantized: the checkpoint says by itself how its weights are stored.
    """

    patch: int = 16
    merge: int = 2
    temporal: int = 2
    channels: int = 3
    max_video_pixels: int = 25_165_824
    embedding_width: int = 4096 * 4
    kv_numbers: int = 2 * 36 * 8 * 128
    max_positions: int = 262_144
    quantized: bool = False

    def video_tokens(self, width: int, height: int, frames: int) -> int:
        """Tokens of a video of this size and this many sampled frames; what is too large is scaled down first."""
        side = self.patch * self.merge
        scale = min(1.0, math.sqrt(self.max_video_pixels / max(1, frames * width * height)))
        fit = round if scale == 1.0 else math.floor
        rows, columns = (max(1, fit(length * scale / side)) for length in (height, width))
        return math.ceil(frames / self.temporal) * rows * columns

    @property
    def largest_video_tokens(self) -> int:
        return self.max_video_pixels // (self.temporal * (self.patch * self.merge) ** 2)

    @property
    def processed_bytes_per_token(self) -> int:
        """Bytes of one merged token's patches as the processor hands them over, in float32."""
        return self.merge**2 * self.channels * self.temporal * self.patch**2 * FLOAT32


def read_shape(checkpoint: Path) -> ModelShape:
    """The shape of the checkpoint in this directory.

    Raises:
        CheckpointUnavailable: `checkpoint_incomplete`: no config.json of a vision-language model.
    """
    config = _json(checkpoint / "config.json")
    text, vision = config.get("text_config"), config.get("vision_config")
    if not isinstance(text, dict) or not isinstance(vision, dict):
        raise CheckpointUnavailable(
            "the checkpoint has no config.json with text_config and vision_config",
            code="checkpoint_incomplete",
            remedy="name a reasoner checkpoint: nvidia/Cosmos3-Nano, a directory of one, or `tiny`",
        )
    size = _json(checkpoint / "video_preprocessor_config.json").get("size")
    default = ModelShape()
    heads = int(text.get("num_attention_heads", 32))
    head_dim = int(text.get("head_dim") or int(text.get("hidden_size", 4096)) // heads)
    kv_heads = int(text.get("num_key_value_heads") or heads)
    width = int(vision.get("out_hidden_size") or text.get("hidden_size", 4096))
    return ModelShape(
        patch=int(vision.get("patch_size", default.patch)),
        merge=int(vision.get("spatial_merge_size", default.merge)),
        temporal=int(vision.get("temporal_patch_size", default.temporal)),
        channels=int(vision.get("in_channels", default.channels)),
        max_video_pixels=int((size or {}).get("longest_edge", default.max_video_pixels)),
        embedding_width=width * (1 + len(vision.get("deepstack_visual_indexes", ()))),
        kv_numbers=2 * int(text.get("num_hidden_layers", 36)) * kv_heads * head_dim,
        max_positions=int(text.get("max_position_embeddings", default.max_positions)),
        quantized=bool(config.get("quantization_config")),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
