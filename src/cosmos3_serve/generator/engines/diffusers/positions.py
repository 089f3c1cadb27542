"""Where tokens lie: three position numbers (time, height, width) for each.

Text counts all three up together. Vision and action tokens start at one common time behind the text, with time scaled
by the frame rate so that a second is a second at any fps (source: diffusers 0.42, the pipeline's segment builders).
"""

from __future__ import annotations

import math
from typing import Any

import torch


class Positions:
    """Args:
    config: the transformer's configuration.
    temporal: frames per latent frame.
    """

    def __init__(self, config: Any, temporal: int) -> None:
        self._fractional = bool(config.enable_fps_modulation)
        self._margin = int(config.unified_3d_mrope_temporal_modality_margin)
        self._reset = bool(config.unified_3d_mrope_reset_spatial_ids)
        self._base_fps = float(config.base_fps)
        self._temporal = temporal

    def text(self, count: int) -> torch.Tensor:
        """[3, count] float32."""
        return torch.arange(count, dtype=torch.float32).expand(3, -1)

    def origin(self, text_count: int) -> int:
        """The time at which the tokens behind a text of `text_count` tokens start."""
        return text_count + self._margin

    def vision(self, grid: tuple[int, int, int], origin: float, fps: float) -> torch.Tensor:
        """[3, T*H*W] float32 for a grid (T, H, W) of latent patches."""
        return self._grid(grid, origin, fps, self._temporal, 0)

    def action(self, count: int, origin: float, fps: float) -> torch.Tensor:
        """[3, count] float32: an action lies at the pixel frame it leads to, so the first is one frame in."""
        return self._grid((count, 1, 1), origin, fps, 1, 1)

    def after(self, positions: torch.Tensor) -> int:
        """The first whole time behind `positions`, for media that follow instead of sharing the same time."""
        return math.ceil(float(positions.max())) + 1

    def _grid(
        self, grid: tuple[int, int, int], origin: float, fps: float, compression: int, start: int
    ) -> torch.Tensor:
        t, h, w = grid
        frames = torch.arange(t, dtype=torch.float32)
        if self._fractional and t > 1:
            time = (frames + start) / (fps / compression) * (self._base_fps / self._temporal) + origin
        else:
            time = frames + int(origin) + start
        spatial = 0 if self._reset else int(origin)
        return torch.stack(
            [
                time.view(-1, 1, 1).expand(t, h, w).reshape(-1),
                (torch.arange(h, dtype=torch.float32) + spatial).view(1, -1, 1).expand(t, h, w).reshape(-1),
                (torch.arange(w, dtype=torch.float32) + spatial).view(1, 1, -1).expand(t, h, w).reshape(-1),
            ]
        )
