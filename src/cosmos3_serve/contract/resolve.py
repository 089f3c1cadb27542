"""From what a client wrote to what an engine runs: defaults, tuned values, frame rules, and every refusal at once.

The defaults and rules are those of the pinned framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.contract.defaults import COMMON, HINT_TUNING, MODE_DEFAULTS, REASONER, TRANSFER, resolution_template
from cosmos3_serve.contract.engine_rules import mode_finding, profile_findings
from cosmos3_serve.contract.findings import capped, prefixed, summary
from cosmos3_serve.contract.media import round_frames
from cosmos3_serve.contract.modes import (
    ACTION_MODES,
    HINTS,
    IMAGE_MODES,
    ModelMode,
    implicit_mode,
    suffix_of,
    vision_kind,
)
from cosmos3_serve.contract.profile import EngineProfile
from cosmos3_serve.contract.prompt import negative_text, prompt_text
from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.contract.rules import resolved_findings, static_findings
from cosmos3_serve.contract.sample import NegativeMetadataMode, SampleOverrides
from cosmos3_serve.errors import FieldError, ModeNotSupported, ValidationFailed

__all__ = ["ResolvedSample", "negative_text", "prompt_text", "resolve_batch", "resolve_sample"]

_PRESET_DEFAULTS = {"preset_edge_threshold": "medium", "preset_blur_strength": "medium"}


def resolve_sample(overrides: SampleOverrides, profile: EngineProfile, *, seed: int) -> ResolvedSample:
    """Fill in and check one sample. The overrides stay unchanged.

    Args:
        seed: used when the sample names none.

    Raises:
        ModeNotSupported: this engine does not serve the mode; the remedy says what to use instead.
        ValidationFailed: anything else; `errors` are all findings, with fields relative to the sample.
    """
    findings = list(static_findings(overrides))
    mode = _mode(overrides)
    if mode is None:
        raise _failed(findings)
    unsupported = mode_finding(mode, profile)
    if unsupported:
        raise ModeNotSupported(unsupported.message, remedy=unsupported.remedy, errors=[unsupported, *findings])
    resolved = _build(overrides, mode, profile, seed)
    findings += resolved_findings(overrides, resolved)
    findings += profile_findings(overrides, resolved, profile)
    if findings:
        raise _failed(findings)
    return resolved


def resolve_batch(
    request: BatchRequest, profile: EngineProfile, *, draw_seed: Callable[[], int]
) -> list[ResolvedSample]:
    """Resolve every sample of a parsed batch, in order; `draw_seed` gives one seed for each sample without.

    Raises:
        ModeNotSupported, ValidationFailed: as `resolve_sample`, with all findings as `samples[i].field`.
    """
    resolved: list[ResolvedSample] = []
    findings: list[FieldError] = []
    failures: list[ValidationFailed] = []
    for index, sample in enumerate(request.samples):
        overrides = SampleOverrides.model_validate(sample)
        try:
            seed = overrides.seed if overrides.seed is not None else draw_seed()
            resolved.append(resolve_sample(overrides, profile, seed=seed))
        except ValidationFailed as failure:
            failures.append(failure)
            findings += prefixed(f"samples[{index}]", failure.errors)
    if failures:
        raise batch_failure(findings, failures)
    return resolved


def batch_failure(findings: list[FieldError], failures: Iterable[ValidationFailed]) -> ValidationFailed:
    """The error of a batch: about modes when every failure is, else a plain validation failure."""
    failures = list(failures)
    about_modes = bool(failures) and all(isinstance(failure, ModeNotSupported) for failure in failures)
    kind = ModeNotSupported if about_modes else ValidationFailed
    remedy = failures[0].remedy if about_modes else findings[0].remedy
    return kind(summary(findings, "invalid batch"), remedy=remedy, errors=capped(findings))


def _failed(findings: list[FieldError]) -> ValidationFailed:
    return ValidationFailed(summary(findings, "invalid sample"), remedy=findings[0].remedy, errors=capped(findings))


def _mode(overrides: SampleOverrides) -> ModelMode | None:
    """The given or implied mode; None when there is none, which `static_findings` has said."""
    if overrides.model_mode is not None:
        return overrides.model_mode
    suffix = None if overrides.vision_path is None else suffix_of(overrides.vision_path)
    try:
        return ModelMode(implicit_mode(suffix, overrides.num_frames))
    except ValueError:
        return None


def _build(overrides: SampleOverrides, mode: ModelMode, profile: EngineProfile, seed: int) -> ResolvedSample:
    given = overrides.given()
    hints = overrides.hints
    values: dict[str, Any] = dict.fromkeys(ResolvedSample.model_fields)
    values |= COMMON | _mode_values(mode, profile)
    if mode is ModelMode.REASONER:
        values |= REASONER
    custom = profile.custom_defaults.get(mode, {})
    values |= {field: value for field, value in custom.items() if field != "num_frames"}
    if hints:
        values |= TRANSFER
        if profile.default_max_frames is not None:
            values["max_frames"] = profile.default_max_frames
            values["num_video_frames_per_chunk"] = profile.default_max_frames
    values |= {
        "name": "",
        "output_dir": "",
        "seed": seed,
        "native_prompt_upsampling": bool(given.get("prompt_upsampling")),
    }
    values["num_frames"] = _frames(overrides, mode, profile)
    tuning = HINT_TUNING[next(iter(hints))] if len(hints) == 1 else {}
    values |= {field: _within(field, value, profile) for field, value in tuning.items()}
    values |= {field: value for field, value in given.items() if field in values and field != "num_frames"}
    if overrides.num_frames is not None:
        values["num_frames"] = _frames(overrides, mode, profile)
    values["model_mode"] = mode
    values["domain_name"] = values["domain_name"].lower().strip()
    for name in HINTS:
        values[name] = _hint(hints[name].model_dump()) if name in hints else None
    if mode is ModelMode.AUDIO_IMAGE2VIDEO:
        values["enable_sound"] = True
    if values["negative_metadata_mode"] == NegativeMetadataMode.NONE and values["negative_prompt_keep_metadata"]:
        values["negative_metadata_mode"] = NegativeMetadataMode.SAME
    if values["condition_frame_indexes_vision"] is None:
        looked_at = None if mode is ModelMode.REASONER else overrides.vision_path  # the reasoner conditions no latents
        values["condition_frame_indexes_vision"] = _condition_indexes(looked_at)
    return ResolvedSample.model_validate(values)


def _mode_values(mode: ModelMode, profile: EngineProfile) -> dict[str, Any]:
    row = MODE_DEFAULTS[mode]
    reasoner = mode is ModelMode.REASONER
    steps = row.num_steps if reasoner or profile.default_num_steps is None else profile.default_num_steps
    negative = profile.negative_prompt if row.own_negative else ""
    return {
        "num_steps": steps,
        "guidance": row.guidance,
        "shift": row.shift,
        "aspect_ratio": row.aspect_ratio,
        "resolution": None if reasoner or mode is ModelMode.IMAGE2IMAGE else profile.default_resolution,
        "resolution_template": resolution_template(mode),
        "negative_prompt": None if reasoner else negative,
    }


def _frames(overrides: SampleOverrides, mode: ModelMode, profile: EngineProfile) -> int:
    """Frame count before hints: given or default, rounded up to 4k + 1 except for the reasoner."""
    if mode is ModelMode.REASONER:
        return overrides.num_frames or 1
    frames: int | None = overrides.num_frames or profile.custom_defaults.get(mode, {}).get("num_frames")
    if frames is None and mode in IMAGE_MODES:
        frames = 1
    if frames is None and mode in ACTION_MODES and profile.strict_inputs:
        # What is made, instead of upstream's inert 189.
        return (overrides.action_chunk_size or COMMON["action_chunk_size"]) + 1
    return round_frames(frames or profile.default_video_frames or MODE_DEFAULTS[mode].num_frames)


def _within(field: str, value: Any, profile: EngineProfile) -> Any:
    """A hint's tuned value, under what a tiny engine makes unless asked otherwise."""
    limits = {"num_frames": profile.default_video_frames, "num_video_frames_per_chunk": profile.default_max_frames}
    limit = limits.get(field)
    return value if limit is None else min(value, limit)


def _hint(hint: dict[str, Any]) -> dict[str, Any]:
    hint["weight"] = 1.0 if hint["weight"] is None else hint["weight"]
    for preset, default in _PRESET_DEFAULTS.items():
        if preset in hint and hint[preset] is None:
            hint[preset] = default
    return hint


def _condition_indexes(vision_path: str | None) -> list[int]:
    kind = None if vision_path is None else vision_kind(suffix_of(vision_path))
    return {"image": [0], "video": [0, 1]}.get(kind or "", [])
