"""One sample between its steps: which strands the next step needs, and what the result does to its latents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.generator.engines.diffusers.attend import Controls
from cosmos3_serve.generator.engines.diffusers.condition import Start
from cosmos3_serve.generator.engines.diffusers.network import Network, Place, Prefix, Strand
from cosmos3_serve.generator.engines.diffusers.schedule import flow_scheduler, step

Interval = tuple[float, float] | None


@dataclass(frozen=True)
class Prompts:
    """What the prompt and the negative prompt leave behind; the second only where guidance asks for it."""

    positive: Prefix
    negative: Prefix | None


@dataclass
class _Branch:
    """One view of the sample: a prompt, with or without its controls."""

    prefix: Prefix
    place: Place
    with_controls: bool
    controls: Controls | None


@dataclass
class Denoising:
    """One pass from noise to latents. `latents` and `action` change with every `advance`."""

    network: Network
    sample: ResolvedSample
    start: Start
    prompts: Prompts
    device: torch.device
    index: int = 0
    _branches: dict[str, _Branch] = field(default_factory=dict)
    _asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        sample, start = self.sample, self.start
        self.latents = start.latents
        self._clean = start.latents.clone()
        self.action = start.action.values if start.action else None
        self._scheduler: Any = flow_scheduler(sample.shift, sample.num_steps, self.device)
        self._action_scheduler: Any = flow_scheduler(sample.shift, sample.num_steps, self.device)
        self._action_moves = start.action is not None and bool(start.action.noisy.any())
        self.steps = len(self._scheduler.timesteps)
        self._timesteps: list[int] = self._scheduler.timesteps.tolist()
        self._branches["positive"] = self._branch(self.prompts.positive, True)
        if self.prompts.negative is not None:
            self._branches["negative"] = self._branch(self.prompts.negative, True)
        if start.controls and sample.control_guidance != 1.0:
            self._branches["uncontrolled"] = self._branch(self.prompts.positive, False)

    @property
    def done(self) -> bool:
        return self.index >= self.steps

    # ---- before the network -----------------------------------------------------------------------------------------

    def strands(self) -> list[Strand]:
        """The strands of the next step: one per branch that counts at its timestep."""
        timestep = self._timesteps[self.index]
        self._asked = [name for name in self._branches if self._counts(name, timestep)]
        own = [self.network.embed_vision(self.latents, self.start.noisy, timestep)]
        if self.start.action is not None and self.action is not None:
            own.append(
                self.network.embed_action(self.action, self.start.action.noisy, timestep, self.start.action.domain)
            )
        controls = [
            self.network.embed_vision(c, torch.zeros_like(self.start.noisy), timestep) for c in self.start.controls
        ]
        strands = []
        for name in self._asked:
            branch = self._branches[name]
            rows = torch.cat([*controls, *own] if branch.with_controls else own)
            strands.append(Strand(rows, branch.place, branch.prefix, branch.controls))
        return strands

    def _counts(self, name: str, timestep: int) -> bool:
        if name == "negative":
            return _within(self.sample.guidance_interval, timestep)
        if name == "uncontrolled":
            return _within(self.sample.control_guidance_interval, timestep)
        return True

    def _branch(self, prefix: Prefix, with_controls: bool) -> _Branch:
        network, start = self.network, self.start
        positions = network.positions
        origin: float = positions.origin(prefix.length)
        parts = []
        media = [*start.controls, self.latents] if with_controls else [self.latents]
        for latents in media:
            parts.append(positions.vision(network.grid(latents), origin, start.fps))
            if not start.share_time:
                origin = positions.after(parts[-1])
        if start.action is not None:
            parts.append(positions.action(start.action.values.shape[0], origin, start.fps))
        return _Branch(
            prefix,
            network.place(torch.cat(parts, dim=1)),
            with_controls,
            start.weights if with_controls else None,
        )

    # ---- behind the network -----------------------------------------------------------------------------------------

    def advance(self, hidden: Sequence[torch.Tensor]) -> None:
        """Take the network's rows for `strands()` and move one step."""
        timestep = self._scheduler.timesteps[self.index]
        velocities = {
            name: self._velocity(rows, self._branches[name]) for name, rows in zip(self._asked, hidden, strict=True)
        }
        vision, action = self._guided(velocities)
        self.latents = step(self._scheduler, vision, timestep, self.latents)
        # The solver keeps fixed frames only up to rounding; they are what was encoded, to the bit.
        self.latents = torch.where(self.start.noisy.view(1, 1, -1, 1, 1), self.latents, self._clean)
        if self.start.action is not None and self.action is not None and action is not None and self._action_moves:
            self.action = step(self._action_scheduler, action, timestep, self.action)
            self.action[:, self.start.action.width :] = 0
        self.index += 1

    def _velocity(self, rows: torch.Tensor, branch: _Branch) -> tuple[torch.Tensor, torch.Tensor | None]:
        t, h, w = self.network.grid(self.latents)
        begin = sum(branch.controls.lengths) if branch.controls else 0
        end = begin + t * h * w
        vision = self.network.vision_velocity(rows[begin:end], self.latents, self.start.noisy)
        stream = self.start.action
        if stream is None:
            return vision, None
        action = self.network.action_velocity(rows[end:], stream.noisy, stream.domain)
        action[:, stream.width :] = 0
        return vision, action

    def _guided(
        self, velocities: dict[str, tuple[torch.Tensor, torch.Tensor | None]]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Guidance along text and control (source: framework, nested guidance)."""
        positive, action = velocities["positive"]
        if "uncontrolled" in velocities:
            plain, _ = velocities["uncontrolled"]
            positive = plain + self.sample.control_guidance * (positive - plain)
        if "negative" not in velocities:
            return positive, action
        negative, negative_action = velocities["negative"]
        scale = self.sample.guidance
        vision = negative + scale * (positive - negative)
        guided = action
        if action is not None and negative_action is not None:
            guided = negative_action + scale * (action - negative_action)
        if self.sample.normalize_cfg:
            ratio = (_norm(positive, action) / (_norm(vision, guided) + 1e-8)).clamp(0.0, 1.0)
            vision = vision * ratio
            guided = guided * ratio if guided is not None else None
        return vision, guided


def _within(interval: Interval, timestep: int) -> bool:
    return interval is None or interval[0] < timestep < interval[1]


def _norm(vision: torch.Tensor, action: torch.Tensor | None) -> torch.Tensor:
    flat = [vision.flatten()] if action is None else [vision.flatten(), action.flatten()]
    return torch.linalg.vector_norm(torch.cat(flat))
