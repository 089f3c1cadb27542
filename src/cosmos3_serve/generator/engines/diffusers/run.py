"""One sample on its way through the engine: from a job to latents, over one pass or, for transfer, several chunks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from cosmos3_serve.contract.modes import ModelMode
from cosmos3_serve.contract.prompt import negative_text, prompt_text
from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.engines.diffusers.codec import Codec, to_frames
from cosmos3_serve.generator.engines.diffusers.condition import Action, Conditioner, Start
from cosmos3_serve.generator.engines.diffusers.denoising import Denoising, Prompts
from cosmos3_serve.generator.engines.diffusers.loader import Components
from cosmos3_serve.generator.engines.diffusers.network import Network, Prefix
from cosmos3_serve.generator.engines.diffusers.prompt import PromptEncoder, action_caption
from cosmos3_serve.generator.engines.diffusers.transfer import Transfer, transfer_clips
from cosmos3_serve.generator.engines.inputs import Frames, Take, Wanted, invalid
from cosmos3_serve.generator.engines.job import EngineJob
from cosmos3_serve.media.read import Media

SUPPORTED_MODES = (
    ModelMode.TEXT2IMAGE,
    ModelMode.TEXT2VIDEO,
    ModelMode.IMAGE2VIDEO,
    ModelMode.VIDEO2VIDEO,
    ModelMode.FORWARD_DYNAMICS,
    ModelMode.INVERSE_DYNAMICS,
    ModelMode.WAM,
)


class Prefixes:
    """Text keys and values of one wave, each prompt computed once: samples with the same negative prompt share it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._known: dict[tuple[int, ...], Prefix] = {}

    def get(self, ids: tuple[int, ...]) -> Prefix:
        if ids not in self._known:
            self._known[ids] = self._network.prefill(ids)
        return self._known[ids]

    def clear(self) -> None:
        self._known.clear()


@dataclass
class Latents:
    """What denoising leaves: latents [1, C, t, h, w] of the (last) pass, and what decoding needs beside them.

    `media`: what was read of the sample's files, by field (`MediaRecord.as_dict`).
    """

    sample: ResolvedSample
    latents: torch.Tensor
    action: torch.Tensor | None
    action_width: int
    transfer: Transfer | None
    chunks: list[Frames]
    media: dict[str, dict[str, Any]]


class Run:
    """A prepared sample. `advance` after each step; `result` once `done`."""

    def __init__(
        self, job: EngineJob, sample: ResolvedSample, tools: Tools, prompts: Prompts,
        *, start: Start | None = None, transfer: Transfer | None = None, media: dict[str, dict[str, Any]],
    ) -> None:  # fmt: skip
        self.media = media
        self.job = job
        self.sample = sample
        self._tools = tools
        self._prompts = prompts
        self._transfer = transfer
        self._chunks: list[Frames] = []
        if start is None:
            assert transfer is not None
            start = transfer.start(0, None)
        self.current = self._denoising(start)
        self._passes = transfer.count if transfer else 1
        self.total_steps = self.current.steps * self._passes
        self.steps_done = 0

    @property
    def done(self) -> bool:
        return self.steps_done >= self.total_steps

    @property
    def shape(self) -> tuple[Any, ...]:
        """What decides the size of every tensor of this sample; equal shapes make an unmixed wave."""
        action: Action | None = self.current.start.action
        return (
            tuple(self.current.latents.shape),
            tuple(action.values.shape) if action else None,
            len(self.current.start.controls),
            self._prompts.negative is None,
        )

    def advance(self, hidden: list[torch.Tensor]) -> None:
        self.current.advance(hidden)
        self.steps_done += 1
        if self.current.done and not self.done:
            self._next_chunk()

    def result(self) -> Latents:
        """Only what decoding needs: the text's keys and values are large and must not outlive the wave."""
        action = self.current.start.action
        return Latents(
            self.sample,
            self.current.latents,
            self.current.action,
            action.width if action else 0,
            self._transfer,
            self._chunks,
            self.media,
        )

    def _next_chunk(self) -> None:
        transfer = self._transfer
        assert transfer is not None
        check_finite(self.current.latents)
        pixels = self._tools.codec.decode(self.current.latents)
        self._chunks.append(transfer_chunk(pixels, len(self._chunks), transfer))
        tail = pixels[:, :, pixels.shape[2] - transfer.overlap :] if transfer.overlap else None
        self.current = self._denoising(transfer.start(len(self._chunks), tail))

    def _denoising(self, start: Start) -> Denoising:
        return Denoising(self._tools.network, self.sample, start, self._prompts, self._tools.parts.device)


def transfer_chunk(pixels: torch.Tensor, index: int, transfer: Transfer) -> Frames:
    """Frames of chunk `index` that the chunks before it have not delivered yet."""
    frames: Frames = to_frames(pixels if index == 0 else pixels[:, :, transfer.overlap :])
    return frames


def check_finite(latents: torch.Tensor) -> None:
    """
    Raises:
        SampleError: `output_invalid`.
    """
    if not bool(torch.isfinite(latents).all()):
        raise SampleError(SampleCode.OUTPUT_INVALID, "the model produced values that are no numbers")


@dataclass(frozen=True)
class Tools:
    """What preparing and running samples needs; one per engine."""

    parts: Components
    network: Network
    codec: Codec
    conditioner: Conditioner
    encoder: PromptEncoder


def media_of(sample: ResolvedSample, conditioner: Conditioner) -> list[Wanted]:
    """The images and clips that `prepare` takes, in its order.

    Raises:
        SampleError: `input_invalid`, as `prepare` will.
    """
    if sample.modality == "transfer":
        return list(transfer_clips(sample, conditioner).values())
    if sample.modality == "action":
        return [conditioner.action_clip(sample)]
    wanted = conditioner.vision_clip(sample)
    return [] if wanted is None else [wanted]


def prepare(job: EngineJob, tools: Tools, prefixes: Prefixes, take: Take = Wanted.read) -> Run:
    """Take the sample's media, encode its prompt, draw its noise.

    Args:
        take: gives the media of `media_of`; default: reads them here and now.

    Raises:
        SampleError: `input_invalid` or `staging_failed`.
    """
    sample = read_sample(job)
    assert sample.seed is not None
    media: dict[str, dict[str, Any]] = {}

    def noted(one: Wanted) -> Media:
        found = take(one)
        media[one.field] = found.record.as_dict()
        return found

    if sample.modality == "transfer":
        transfer = Transfer(sample, tools.parts, tools.codec, tools.conditioner, noted)
        said = sample.model_copy(update={"fps": max(1, round(transfer.fps))})
        text = prompt_text(said, size=transfer.size, num_frames=transfer.chunk)
        negative = negative_text(said, size=transfer.size, num_frames=transfer.chunk)
        prompts = _prompts(sample, tools, prefixes, text, negative)
        return Run(job, sample, tools, prompts, transfer=transfer, media=media)
    if sample.modality == "action":
        start, canvas = tools.conditioner.action(sample, sample.seed, noted)
        frames = sample.action_chunk_size + 1
        # Upstream leaves an empty caption empty instead of describing nothing.
        text = sample.prompt and action_caption(
            sample.prompt, view_point=sample.view_point or "", num_frames=frames, fps=sample.fps, size=canvas
        )
        negative = negative_text(sample, size=canvas, num_frames=frames)
    else:
        text, negative = prompt_text(sample), negative_text(sample)
        start = tools.conditioner.vision(sample, sample.seed, noted)
    prompts = _prompts(sample, tools, prefixes, text, negative)
    return Run(job, sample, tools, prompts, start=start, media=media)


def read_sample(job: EngineJob) -> ResolvedSample:
    """
    Raises:
        SampleError: `input_invalid`: the args are no resolved sample, or ask for what this engine does not do.
    """
    try:
        sample = ResolvedSample.model_validate(job.args)
    except ValidationError as error:
        first = error.errors()[0]
        raise invalid(".".join(str(part) for part in first["loc"]), first["msg"]) from None
    if sample.model_mode not in SUPPORTED_MODES:
        raise invalid("model_mode", f"{sample.model_mode} is not served by the diffusers engine")
    if sample.hints and sample.modality == "transfer" and sample.model_mode not in SUPPORTED_MODES[:4]:
        raise invalid("model_mode", f"{sample.model_mode} cannot be combined with transfer hints")
    if sample.enable_sound or sample.sound_path:
        raise invalid("enable_sound", "the diffusers engine makes no sound")
    if sample.native_prompt_upsampling:
        raise invalid("prompt_upsampling", "the diffusers engine does not rewrite prompts")
    if sample.tensors_file or sample.pickle_file:
        raise invalid("tensors_file", "is refused")
    if sample.num_outputs != 1:
        raise invalid("num_outputs", "must be 1; name several samples instead")
    if sample.seed is None:
        raise invalid("seed", "was not drawn")
    for field in ("vision_path", "action_path"):
        path = getattr(sample, field)
        if path is not None and not Path(path).is_file():
            raise SampleError(SampleCode.STAGING_FAILED, f"{field}: the staged file is gone")
    return sample


def _prompts(sample: ResolvedSample, tools: Tools, prefixes: Prefixes, text: str, negative: str) -> Prompts:
    positive = prefixes.get(tools.encoder.ids(text))
    return Prompts(positive, prefixes.get(tools.encoder.ids(negative)) if sample.guidance != 1.0 else None)
