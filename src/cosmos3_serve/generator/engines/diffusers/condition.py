"""What a sample starts from: noise, and what its media and actions fix.

Conditioning is built as upstream builds it: the conditioning frames lie at the start of the clip, the last of them
fills the rest, the whole is encoded, and the named latent frames stay as encoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cosmos3_serve.contract.media import SIZES
from cosmos3_serve.contract.profile import DIFFUSERS_DOMAINS
from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.engines.actions import DOMAIN_IDS, VIEW_POINTS, read_actions
from cosmos3_serve.generator.engines.diffusers.attend import Controls
from cosmos3_serve.generator.engines.diffusers.codec import Codec, to_pixels
from cosmos3_serve.generator.engines.diffusers.loader import Components
from cosmos3_serve.generator.engines.inputs import Frames, Take, Wanted, invalid

MAX_SEED = 2**63 - 1


@dataclass
class Action:
    """An action stream: values [T, action_dim] float32, which steps are denoised, and the embodiment."""

    values: torch.Tensor
    noisy: torch.Tensor
    domain: torch.Tensor
    width: int


@dataclass
class Start:
    """One denoising pass before its first step.

    `latents` [1, C, T, h, w] float32 hold noise where `noisy` [T] says so and encoded media elsewhere. `controls` are
    the latents of control media, clean throughout.
    """

    latents: torch.Tensor
    noisy: torch.Tensor
    fps: float
    action: Action | None = None
    controls: tuple[torch.Tensor, ...] = ()
    weights: Controls | None = None
    share_time: bool = True


class Conditioner:
    def __init__(self, parts: Components, codec: Codec) -> None:
        self._parts = parts
        self._codec = codec

    # ---- shapes -----------------------------------------------------------------------------------------------------

    def canvas(self, sample: ResolvedSample) -> tuple[int, int]:
        """(width, height) in pixels of a vision or transfer sample."""
        size = sample.size
        if size is None:
            raise SampleError(SampleCode.INPUT_INVALID, "resolution and aspect_ratio give no size")
        if size[0] % self._parts.spatial or size[1] % self._parts.spatial:
            raise SampleError(
                SampleCode.INPUT_INVALID,
                f"resolution: {size[0]}x{size[1]} is no multiple of {self._parts.spatial}, as this engine needs;"
                " use another aspect_ratio",
            )
        return size

    def latent_shape(self, frames: int, size: tuple[int, int]) -> tuple[int, ...]:
        width, height = size
        spatial, temporal = self._parts.spatial, self._parts.temporal
        channels = int(self._parts.vae.config.z_dim)
        return 1, channels, (frames - 1) // temporal + 1, height // spatial, width // spatial

    def generator(self, seed: int) -> torch.Generator:
        if abs(seed) > MAX_SEED:
            raise invalid("seed", f"must lie within {-MAX_SEED} and {MAX_SEED}")
        return torch.Generator(self._parts.device).manual_seed(seed)

    # ---- vision -----------------------------------------------------------------------------------------------------

    def vision_clip(self, sample: ResolvedSample) -> Wanted | None:
        """What `vision` reads."""
        if sample.vision_path is None:
            return None
        size = self.canvas(sample)
        fixed = self._fixed_frames(sample.condition_frame_indexes_vision, self.latent_shape(sample.num_frames, size)[2])
        return Wanted(
            sample.vision_path,
            "vision_path",
            size=size,
            max_frames=max(fixed) * self._parts.temporal + 1,
            keep=sample.condition_video_keep,
        )

    def vision(self, sample: ResolvedSample, seed: int, take: Take = Wanted.read) -> Start:
        """Start of text2image, text2video, image2video and video2video."""
        size = self.canvas(sample)
        shape = self.latent_shape(sample.num_frames, size)
        fixed: list[int] = []
        encoded: torch.Tensor | None = None
        wanted = self.vision_clip(sample)
        if wanted is not None:
            fixed = self._fixed_frames(sample.condition_frame_indexes_vision, shape[2])
            encoded = self.encode(take(wanted).frames, sample.num_frames)
        return self.start(shape, encoded, fixed, self.generator(seed), float(sample.fps))

    def encode(self, frames: Frames, count: int) -> torch.Tensor:
        """Latents of a clip of `count` frames that begins with `frames` and stays on the last of them."""
        frames = frames[:count]
        filled = np.concatenate([frames, np.repeat(frames[-1:], count - len(frames), axis=0)])
        return self._codec.encode(to_pixels(filled))

    def start(
        self,
        shape: tuple[int, ...],
        encoded: torch.Tensor | None,
        fixed: list[int],
        generator: torch.Generator,
        fps: float,
    ) -> Start:
        """Noise of `shape`, with the latent frames `fixed` taken from `encoded`."""
        device = self._parts.device
        latents = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
        noisy = torch.ones(shape[2], dtype=torch.bool, device=device)
        if encoded is not None and fixed:
            noisy[fixed] = False
            latents[:, :, fixed] = encoded[:, :, fixed]
        return Start(latents, noisy, fps)

    def _fixed_frames(self, indexes: list[int], count: int) -> list[int]:
        if not indexes:
            raise invalid(
                "condition_frame_indexes_vision", "is empty, so vision_path would be ignored; leave vision_path out"
            )
        wrong = [i for i in indexes if not 0 <= i < count]
        if wrong:
            raise invalid(
                "condition_frame_indexes_vision", f"{wrong[0]} lies outside the {count} latent frames of this clip"
            )
        return sorted(set(indexes))

    # ---- action -----------------------------------------------------------------------------------------------------

    def action_clip(self, sample: ResolvedSample) -> Wanted:
        """What `action` reads."""
        if sample.vision_path is None:
            raise invalid("vision_path", f"{sample.model_mode} needs the first frame or a clip")
        return Wanted(sample.vision_path, "vision_path", max_frames=sample.action_chunk_size + 1)

    def action(self, sample: ResolvedSample, seed: int, take: Take = Wanted.read) -> tuple[Start, tuple[int, int]]:
        """Start of wam, forward_dynamics and inverse_dynamics, and the (width, height) of the padded canvas.

        The frames are scaled down to fit the canvas of `image_size` (never up), mirrored at the right and lower edge to
        fill it, encoded, and the latents of that margin cut off again; so the result has the size of the content.
        """
        domain = sample.domain_name.lower().strip()
        width = self._domain_width(sample, domain)
        frames_needed = sample.action_chunk_size + 1
        wanted = self.action_clip(sample)
        if sample.view_point not in VIEW_POINTS:
            raise invalid("view_point", f"must be one of {', '.join(sorted(VIEW_POINTS))}")
        clip = take(wanted)
        tier = SIZES.get(str(sample.image_size))
        if tier is None:
            raise invalid("image_size", f"must be one of {', '.join(SIZES)}")
        spatial = self._parts.spatial
        if sample.action_chunk_size % self._parts.temporal:
            raise invalid("action_chunk_size", f"must be a multiple of {self._parts.temporal}")
        padded, canvas, content = _fit(clip.frames, tier)
        if canvas[0] % spatial or canvas[1] % spatial:
            raise invalid("image_size", f"{canvas[0]}x{canvas[1]} is no multiple of {spatial}; use another image_size")
        encoded = self.encode(padded, frames_needed)
        encoded = encoded[..., : max(content[1] // spatial, 1), : max(content[0] // spatial, 1)]
        observed = encoded.shape[2] if sample.model_mode == "inverse_dynamics" else 1
        generator = self.generator(seed)
        start = self.start(tuple(encoded.shape), encoded, list(range(observed)), generator, float(sample.fps))
        start.action = self._stream(sample, domain, width, generator)
        return start, canvas

    def _domain_width(self, sample: ResolvedSample, domain: str) -> int:
        width = DIFFUSERS_DOMAINS.get(domain)
        network = self._parts.transformer.config
        if width is None or domain not in DOMAIN_IDS:
            raise invalid("domain_name", f"{domain!r} is not served; use one of {', '.join(sorted(DIFFUSERS_DOMAINS))}")
        if not network.action_gen:
            raise invalid("model_mode", f"this checkpoint was not trained for {sample.model_mode}")
        if DOMAIN_IDS[domain] >= network.num_embodiment_domains or width > network.action_dim:
            raise invalid("domain_name", f"{domain!r} is not in this checkpoint")
        if sample.raw_action_dim is not None and sample.raw_action_dim != width:
            raise invalid("raw_action_dim", f"{domain} has {width}; leave the field out")
        return width

    def _stream(self, sample: ResolvedSample, domain: str, width: int, generator: torch.Generator) -> Action:
        device = self._parts.device
        count, dim = sample.action_chunk_size, int(self._parts.transformer.config.action_dim)
        values = torch.randn((count, dim), generator=generator, device=device, dtype=torch.float32)
        values[:, width:] = 0
        noisy = torch.ones(count, dtype=torch.bool, device=device)
        if sample.model_mode == "forward_dynamics":
            if sample.action_path is None:
                raise invalid("action_path", "forward_dynamics needs the actions to roll out")
            given = read_actions(Path(sample.action_path), "action_path", width=width)[:count]
            given += [given[-1]] * (count - len(given))
            values = torch.zeros_like(values)
            values[:, :width] = torch.tensor(given, dtype=torch.float32, device=device)
            noisy[:] = False
        ids: Any = torch.tensor([DOMAIN_IDS[domain]], dtype=torch.long, device=device)
        return Action(values, noisy, ids, width)


def _fit(frames: Frames, tier: dict[str, tuple[int, int]]) -> tuple[Frames, tuple[int, int], tuple[int, int]]:
    """(padded frames, canvas, content), sizes as (width, height): upstream's preparation of observations."""
    from PIL import Image

    height, width = frames.shape[1:3]
    canvas = min(tier.values(), key=lambda s: abs(s[1] / s[0] - height / width))
    scale = min(canvas[0] / width, canvas[1] / height, 1.0)
    content = max(1, int(scale * width + 0.5)), max(1, int(scale * height + 0.5))
    if content != (width, height):
        resized = [Image.fromarray(f).resize(content, Image.Resampling.BICUBIC) for f in frames]
        frames = np.stack([np.asarray(f, dtype=np.uint8) for f in resized])
    right, bottom = canvas[0] - content[0], canvas[1] - content[1]
    mode: Any = "edge" if right >= content[0] or bottom >= content[1] else "reflect"
    return np.pad(frames, ((0, 0), (0, bottom), (0, right), (0, 0)), mode=mode), canvas, content
