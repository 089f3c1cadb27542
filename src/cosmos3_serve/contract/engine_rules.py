"""Rules of one engine, read from its profile: what it does not do is refused by name, never silently ignored."""

from __future__ import annotations

from collections.abc import Iterator

from cosmos3_serve.contract.defaults import COMMON, TRANSFER
from cosmos3_serve.contract.findings import did_you_mean, shorten
from cosmos3_serve.contract.modes import ACTION_MODES, ModelMode, suffix_of, vision_kind
from cosmos3_serve.contract.profile import EngineProfile
from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.errors import FieldError

_DEFAULTS = {**COMMON, **TRANSFER, "prompt_upsampling": False}
_PRESETS = {"preset_edge_threshold": "medium", "preset_blur_strength": "medium"}


def mode_finding(mode: ModelMode, profile: EngineProfile) -> FieldError | None:
    """The refusal of a mode that this engine does not serve, with what to use instead."""
    if mode in profile.supported_modes:
        return None
    served = ", ".join(sorted(profile.supported_modes))
    remedy = profile.use_instead.get(mode, f"this engine serves {served}")
    return FieldError("model_mode", f"{mode.value} is not served by the {profile.engine} engine", remedy)


def profile_findings(sample: SampleOverrides, resolved: ResolvedSample, profile: EngineProfile) -> Iterator[FieldError]:
    """Everything that this engine would ignore, or fail at after the work."""
    yield from _unhonoured(sample, profile)
    if resolved.enable_sound and not profile.sound:
        field = "enable_sound" if sample.enable_sound else "model_mode"
        yield FieldError(field, f"the {profile.engine} engine makes no sound", "ask for a clip without sound")
    if resolved.model_mode in ACTION_MODES:
        yield from _action(resolved, profile)
    elif resolved.size and any(side % profile.size_multiple for side in resolved.size):
        yield FieldError(
            "aspect_ratio",
            f"{resolved.size[0]}x{resolved.size[1]} is no multiple of {profile.size_multiple} each way",
            "use another aspect_ratio or resolution",
        )
    if resolved.hints:
        yield from _transfer(sample, resolved, profile)
    if profile.strict_inputs:
        yield from _unread(sample, resolved)
        if not resolved.hints and resolved.model_mode not in ACTION_MODES:
            yield from _conditioning(sample, resolved)


def _unhonoured(sample: SampleOverrides, profile: EngineProfile) -> Iterator[FieldError]:
    for field, value in sample.given().items():
        if field in profile.honoured_fields or field in ("enable_sound", "output_dir", "defaults_file"):
            continue
        if field in ("tensors_file", "pickle_file") or (field in _DEFAULTS and value == _DEFAULTS[field]):
            continue  # refused on every engine, or nothing would be lost
        if field == "raw_action_dim" and _domain(sample.domain_name) in profile.supported_domains:
            if value != profile.supported_domains[_domain(sample.domain_name)]:
                yield FieldError(field, "contradicts the width of the domain", "leave it out")
            continue
        default = f"; only its default {_DEFAULTS[field]!r} is accepted" if _DEFAULTS.get(field) is not None else ""
        yield FieldError(
            field, f"is not supported by the {profile.engine} engine{default}", "remove it, or use the framework engine"
        )


def _domain(name: str | None) -> str:
    return (name or "").lower().strip()


def _action(resolved: ResolvedSample, profile: EngineProfile) -> Iterator[FieldError]:
    domain = resolved.domain_name
    if domain not in profile.supported_domains:
        engine = f"the {profile.engine} engine"
        said = f"{shorten(domain, 64)!r} is no domain of {engine}" if domain else f"is missing; {engine} needs one"
        remedy = profile.use_instead.get(domain) or did_you_mean(domain, profile.supported_domains)
        known = ", ".join(sorted(profile.supported_domains))
        yield FieldError("domain_name", said, remedy or f"use one of {known}")
    if resolved.image_size not in profile.action_image_sizes:
        sizes = ", ".join(map(str, sorted(profile.action_image_sizes)))
        yield FieldError("image_size", f"is {resolved.image_size}", f"use one of {sizes}")
    if resolved.action_chunk_size % profile.action_chunk_multiple:
        yield FieldError(
            "action_chunk_size",
            f"is {resolved.action_chunk_size}; the {profile.engine} engine makes 4k + 1 frames",
            f"use a multiple of {profile.action_chunk_multiple}",
        )
    if profile.view_points is not None and resolved.view_point not in profile.view_points:
        yield FieldError("view_point", "is unknown", f"use one of {', '.join(sorted(profile.view_points))}")


def _transfer(
    sample: SampleOverrides, resolved: ResolvedSample, profile: EngineProfile
) -> Iterator[FieldError]:  # fmt: skip
    if profile.transfer == "none":
        yield FieldError(next(iter(resolved.hints)), f"the {profile.engine} engine has no transfer", "remove the hints")
        return
    if profile.transfer == "full":
        return
    if resolved.model_mode in ACTION_MODES:
        yield FieldError("model_mode", f"{resolved.model_mode.value} takes no hints here", "remove the hints")
    for name, hint in resolved.hints.items():
        if hint.control_path is None and resolved.vision_path is not None:
            yield FieldError(
                f"{name}.control_path",
                f"is missing; the {profile.engine} engine computes no {name} from vision_path",
                "compute the control media yourself and name it here, or use the framework engine",
            )
        given = sample.hints[name]
        for preset, default in _PRESETS.items():
            if getattr(given, preset, None) not in (None, default):
                yield FieldError(f"{name}.{preset}", "acts only on a control computed from vision_path", "remove it")
    read = resolved.num_first_chunk_conditional_frames or resolved.show_input
    if resolved.vision_path is not None and not read:
        yield FieldError(
            "vision_path",
            "would not be read beside control media",
            "remove it, or set num_first_chunk_conditional_frames or show_input",
        )


def _unread(sample: SampleOverrides, resolved: ResolvedSample) -> Iterator[FieldError]:
    """Inputs that would be fetched and then read by nothing."""
    if sample.prompt is not None and sample.prompt_path is not None:
        yield FieldError("prompt_path", "would not be read beside prompt", "give one of the two")
    if sample.negative_prompt is not None and sample.negative_prompt_file is not None:
        yield FieldError("negative_prompt_file", "would not be read beside negative_prompt", "give one of the two")
    if resolved.action_path is not None and resolved.model_mode is not ModelMode.FORWARD_DYNAMICS:
        yield FieldError("action_path", f"is not read in {resolved.model_mode.value}", "remove it")
    if resolved.model_mode in ACTION_MODES:
        kind = vision_kind(suffix_of(resolved.vision_path or ""))
        if resolved.model_mode is ModelMode.INVERSE_DYNAMICS and kind == "image":
            yield FieldError("vision_path", "is an image; inverse_dynamics needs a video", "give an .mp4")
        if sample.condition_frame_indexes_vision is not None:
            yield FieldError("condition_frame_indexes_vision", "is set by the action mode itself", "remove it")
        frames = resolved.action_chunk_size + 1
        if sample.num_frames not in (None, 1, frames):
            yield FieldError("num_frames", f"action clips have action_chunk_size + 1 = {frames} frames", "leave it out")


def _conditioning(sample: SampleOverrides, resolved: ResolvedSample) -> Iterator[FieldError]:
    """`vision_path` and what it conditions, for the plain image and video modes."""
    mode, indexes = resolved.model_mode, resolved.condition_frame_indexes_vision
    wanted = {ModelMode.IMAGE2VIDEO: "image", ModelMode.VIDEO2VIDEO: "video"}.get(mode)
    if resolved.vision_path is None:
        if wanted == "video":
            yield FieldError("vision_path", f"is missing; {mode.value} continues a video", "give an .mp4")
        if indexes:
            yield FieldError("condition_frame_indexes_vision", "conditions on nothing without vision_path", "remove it")
        return
    kind = vision_kind(suffix_of(resolved.vision_path))
    if wanted != kind:
        right = {"image": "image2video", "video": "video2video"}.get(kind or "")
        remedy = f"use model_mode {right}" if right else "use an image or an .mp4"
        yield FieldError("vision_path", f"{mode.value} reads no {kind or 'such file'}", remedy)
        return
    if resolved.num_frames == 1:
        yield FieldError("num_frames", f"is 1; {mode.value} needs more", "use 5 or more")
    elif not indexes:
        yield FieldError("condition_frame_indexes_vision", "is empty, so vision_path would not be read", "leave it out")
    elif min(indexes) < 0 or max(indexes) >= resolved.latent_frames:
        yield FieldError(
            "condition_frame_indexes_vision",
            f"goes outside the {resolved.latent_frames} latent frames of {resolved.num_frames} frames",
            "count latent frames from 0; each holds 4 frames, the first 1",
        )
    elif kind == "image" and set(indexes) != {0}:
        yield FieldError("condition_frame_indexes_vision", "an image conditions latent frame 0 only", "leave it out")
    elif set(indexes) == set(range(resolved.latent_frames)):
        yield FieldError("num_frames", "leaves no frame to generate after the conditioning", "ask for more frames")
