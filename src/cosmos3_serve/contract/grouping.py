"""Which samples may share one inference call, and which take equally long."""

from __future__ import annotations

from collections.abc import Hashable
from uuid import uuid4

from cosmos3_serve.contract.modes import IMAGE_MODES, suffix_of, vision_kind
from cosmos3_serve.contract.resolved import ResolvedSample

Key = tuple[Hashable, ...]


def wave_key(resolved: ResolvedSample) -> Key:
    """What must be equal inside one `generate_batch` call: what upstream compares and raises over, and what it takes
    from the first sample without comparing (the reasoner's sampling and seed).

    Sizes, aspect ratios, prompts and, outside the reasoner, seeds may differ. A transfer sample gets a key that equals
    no other, not even its own from another call: upstream takes one of those at a time.
    """
    modality = resolved.modality
    if modality == "transfer":
        return (modality, uuid4().hex)
    if modality == "reasoner":
        kind = vision_kind(suffix_of(resolved.vision_path)) if resolved.vision_path else None
        return (
            modality,
            kind,
            resolved.max_new_tokens,
            resolved.do_sample,
            resolved.temperature,
            resolved.top_k,
            resolved.top_p,
            resolved.repetition_penalty,
            resolved.presence_penalty,
            resolved.video_fps,
            resolved.seed if resolved.do_sample else None,
        )
    key: Key = (
        modality,
        resolved.model_mode in IMAGE_MODES,
        resolved.conditioned,
        resolved.enable_sound,
        resolved.num_steps,
        resolved.guidance,
        resolved.guidance_interval,
        resolved.shift,
        resolved.sigma_max,
        resolved.normalize_cfg,
        _upsampling(resolved),
    )
    if modality == "action":
        # Upstream's data keys follow the action task and its width; mixing them is not known to work.
        key += (resolved.model_mode, resolved.domain_name, resolved.action_chunk_size, resolved.image_size)
    return key


def _upsampling(resolved: ResolvedSample) -> Key | None:
    settings = tuple(
        getattr(resolved, f"prompt_upsampler_{name}")
        for name in (
            *("max_tokens", "temperature", "top_p", "top_k"),
            *("repetition_penalty", "presence_penalty", "seed"),
        )
    )
    # The upsampling task differs by mode, and matters only when upsampling is on.
    return (*settings, resolved.model_mode if resolved.native_prompt_upsampling else None)


def shape_key(resolved: ResolvedSample) -> Key:
    """What decides how long a sample takes: mode, hints, size in pixels, frames, steps, and whether guidance doubles
    the work. Two samples with equal shape keys give equal tensors."""
    # Without a table size the input media decides; the action tier bounds it.
    width, height = resolved.size or (resolved.image_size if resolved.modality == "action" else 0, 0)
    extent = resolved.max_new_tokens if resolved.modality == "reasoner" else resolved.frames
    clip = resolved.max_frames if resolved.modality == "transfer" else None
    return (
        str(resolved.model_mode),
        tuple(resolved.hints),
        width,
        height,
        extent,
        clip,
        resolved.num_steps,
        resolved.guidance != 1.0,
        resolved.enable_sound,
    )
