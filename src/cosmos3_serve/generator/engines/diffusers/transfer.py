"""Transfer: a clip that follows control media, generated chunk by chunk.

As upstream does it: the clip is as long as the first control; each chunk after the first starts from the last frames of
the one before; weights are shares; each chunk draws from seed + its number.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from cosmos3_serve.contract.budget import budget_findings
from cosmos3_serve.contract.media import round_frames
from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.generator.engines.diffusers.attend import Controls
from cosmos3_serve.generator.engines.diffusers.codec import Codec, to_pixels
from cosmos3_serve.generator.engines.diffusers.condition import Conditioner, Start
from cosmos3_serve.generator.engines.diffusers.loader import Components
from cosmos3_serve.generator.engines.inputs import Frames, Take, Wanted, invalid


class Transfer:
    """The plan of one transfer sample.

    Attributes:
        size: (width, height). total: frames of the result. chunk: frames of one chunk. count: number of chunks.
        fps: of the result. controls: hint name to frames [total or more, H, W, 3].
    """

    def __init__(
        self,
        sample: ResolvedSample,
        parts: Components,
        codec: Codec,
        conditioner: Conditioner,
        take: Take = Wanted.read,
    ) -> None:
        self._sample = sample
        self._parts = parts
        self._codec = codec
        self._conditioner = conditioner
        self.size = conditioner.canvas(sample)
        wanted = transfer_clips(sample, conditioner)
        self._check_input()
        self._input = take(wanted["vision_path"]) if "vision_path" in wanted else None
        self.fps = self._input.fps if self._input else float(sample.fps)
        clips = {name: take(self._control(wanted, name)).frames for name in sample.hints}
        self.total = len(next(iter(clips.values())))
        self._check_frames()
        for finding in budget_findings(sample, self.total):
            raise invalid(finding.field, f"{finding.message}; {finding.remedy}")
        self.chunk = 1 if self.total == 1 else round_frames(sample.num_video_frames_per_chunk or 93)
        self.count, self.stride = self._chunks()
        whole = max(self.total, self.chunk)
        self.controls = {name: reflect(frames, whole) for name, frames in clips.items()}
        self.weights = self._weights()

    def start(self, index: int, tail: torch.Tensor | None) -> Start:
        """Start of chunk `index`; `tail` [1, 3, n, H, W]: the last pixels of the chunk before, None for the first."""
        begin = index * self.stride
        end = min(begin + self.chunk, self.total)
        windows = [reflect(frames[begin:end], self.chunk) for frames in self.controls.values()]
        lead = self._lead() if index == 0 else tail
        encoded: torch.Tensor | None = None
        fixed: list[int] = []
        if lead is not None and lead.shape[2]:
            rest = lead[:, :, -1:].expand(-1, -1, self.chunk - lead.shape[2], -1, -1)
            encoded = self._codec.encode(torch.cat([lead, rest], dim=2))
            fixed = list(range((lead.shape[2] - 1) // self._parts.temporal + 1))
        start = self._conditioner.start(
            self._conditioner.latent_shape(self.chunk, self.size),
            encoded,
            fixed,
            self._conditioner.generator((self._sample.seed or 0) + index),
            self.fps,
        )
        start.controls = tuple(self._codec.encode(to_pixels(window)) for window in windows)
        grid = (start.latents.shape[2], -(-start.latents.shape[3] // 2), -(-start.latents.shape[4] // 2))
        tokens = grid[0] * grid[1] * grid[2]
        start.weights = Controls((tokens,) * len(windows), self.weights)
        start.share_time = self._sample.share_vision_temporal_positions is not False
        return start

    @property
    def overlap(self) -> int:
        """Frames that a chunk takes over from the one before."""
        return min(self._sample.num_conditional_frames or 0, self.chunk)

    def present(self, frames: Frames) -> Frames:
        """The delivered clip: the input and the controls beside it where the sample asks for them."""
        columns = [frames]
        if self._sample.show_control_condition:
            columns = [*(control[: self.total] for control in self.controls.values()), *columns]
        if self._sample.show_input and self._input is not None:
            columns = [reflect(self._input.frames, max(self.total, self.chunk))[: self.total], *columns]
        return np.concatenate(columns, axis=2) if len(columns) > 1 else frames

    # ---- reading ----------------------------------------------------------------------------------------------------

    def _check_input(self) -> None:
        sample = self._sample
        if sample.vision_path is None:
            if sample.num_first_chunk_conditional_frames:
                raise invalid("num_first_chunk_conditional_frames", "needs vision_path to take frames from")
            if sample.show_input:
                raise invalid("show_input", "needs vision_path to show")

    def _control(self, wanted: Mapping[str, Wanted], name: str) -> Wanted:
        field = f"{name}.control_path"
        if field not in wanted:
            raise invalid(field, "is needed: this engine does not compute controls from vision_path")
        return wanted[field]

    def _check_frames(self) -> None:
        if (self._sample.num_frames == 1) != (self.total == 1):
            raise invalid(
                "num_frames",
                f"the control has {self.total} frames while num_frames is {self._sample.num_frames}:"
                " send a still image with num_frames 1, or a clip with more",
            )

    def _chunks(self) -> tuple[int, int]:
        if self.total <= self.chunk:
            return 1, self.chunk
        stride = self.chunk - self.overlap
        if stride <= 0:
            raise invalid("num_conditional_frames", "must be smaller than num_video_frames_per_chunk")
        return 1 + -(-(self.total - self.chunk) // stride), stride

    def _weights(self) -> tuple[float, ...]:
        weights = [1.0 if hint.weight is None else float(hint.weight) for hint in self._sample.hints.values()]
        total = sum(weights)
        if min(weights) < 0 or total <= 0:
            name = next(iter(self._sample.hints))
            raise invalid(f"{name}.weight", "weights must not be negative and must not all be zero")
        return tuple(weight / total for weight in weights)

    def _lead(self) -> torch.Tensor | None:
        count = min(self._sample.num_first_chunk_conditional_frames or 0, self.chunk)
        if not count or self._input is None:
            return None
        return to_pixels(reflect(self._input.frames, count)[:count]).to(self._parts.device)


def transfer_clips(sample: ResolvedSample, conditioner: Conditioner) -> dict[str, Wanted]:
    """What a transfer sample reads, by field: its input first, then its controls."""
    size, limit = conditioner.canvas(sample), sample.max_frames or 5000
    paths = {"vision_path": sample.vision_path}
    paths |= {f"{name}.control_path": hint.control_path for name, hint in sample.hints.items()}
    return {field: Wanted(path, field, size=size, max_frames=limit) for field, path in paths.items() if path}


def reflect(frames: Frames, count: int) -> Frames:
    """At least `count` frames: a short clip runs back and forth, a single frame stands still."""
    if len(frames) == 1:
        still: Frames = np.repeat(frames, max(count, 1), axis=0)
        return still
    while len(frames) < count:
        frames = np.concatenate([frames, frames[::-1][: count - len(frames)][: len(frames) - 1]])
    return frames
