"""What a sample means when it does not say: the framework's tables, and an operator's own defaults over them.

The client binds a response to defaults that it knows by the framework revision. A service with other ones announces it
in `/ready` (`custom_defaults`), and then the client insists on the two fields that decide what kind of media a sample
is: `model_mode` and `num_frames`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from cosmos3_serve.contract.jsontext import canonical_json
from cosmos3_serve.contract.modes import ACTION_MODES, IMAGE_MODES, ModelMode
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.errors import FieldError, UsageError, ValidationFailed

VIDEO_FRAMES: Final = 189

DURATION_TEMPLATE: Final = "The video is {duration:.1f} seconds long and is of {fps:.0f} FPS."
INVERSE_DURATION_TEMPLATE: Final = "The video is not {duration:.1f} seconds long and is not of {fps:.0f} FPS."
IMAGE_RESOLUTION_TEMPLATE: Final = "This image is of {height}x{width} resolution."
VIDEO_RESOLUTION_TEMPLATE: Final = "This video is of {height}x{width} resolution."
INVERSE_RESOLUTION_TEMPLATE: Final = "This video is not of {height}x{width} resolution."


@dataclass(frozen=True, slots=True)
class ModeDefaults:
    """Row of a mode. `own_negative` marks the modes whose default negative prompt is the engine's own text."""

    num_steps: int
    guidance: float
    shift: float
    aspect_ratio: str | None
    num_frames: int
    own_negative: bool = False


_VIDEO = ModeDefaults(35, 6.0, 10.0, "16,9", VIDEO_FRAMES, own_negative=True)
_ACTION = ModeDefaults(30, 1.0, 10.0, "16,9", VIDEO_FRAMES)

MODE_DEFAULTS: Final[dict[ModelMode, ModeDefaults]] = {
    ModelMode.TEXT2IMAGE: ModeDefaults(50, 4.0, 3.0, "1,1", 1),
    ModelMode.IMAGE2IMAGE: ModeDefaults(35, 6.0, 5.0, None, 1),
    ModelMode.TEXT2VIDEO: _VIDEO,
    ModelMode.IMAGE2VIDEO: _VIDEO,
    ModelMode.VIDEO2VIDEO: _VIDEO,
    ModelMode.AUDIO_IMAGE2VIDEO: _VIDEO,
    **dict.fromkeys(ACTION_MODES, _ACTION),
    # inert: the reasoner runs no denoising
    ModelMode.REASONER: ModeDefaults(1, 0.0, 0.0, None, 1),
}

# Fields whose default does not depend on the mode, other than the reasoner's.
COMMON: Final[dict[str, Any]] = {
    "model": "",
    "extra": {},
    "num_outputs": 1,
    "guidance_interval": None,
    "normalize_cfg": False,
    "sigma_max": 80.0,
    "prompt": "",
    "fps": 24,
    "video_save_quality": 10,
    "image_save_quality": 95,
    "condition_video_keep": "first",
    "negative_metadata_mode": "none",
    "negative_prompt_keep_metadata": True,
    "duration_template": DURATION_TEMPLATE,
    "inverse_duration_template": INVERSE_DURATION_TEMPLATE,
    "inverse_resolution_template": INVERSE_RESOLUTION_TEMPLATE,
    "enable_sound": False,
    "domain_name": "",
    "image_size": 256,
    "action_chunk_size": 16,
    "view_point": "ego_view",
    "control_guidance": 1.0,
    "prompt_upsampler_max_tokens": 20000,
    "prompt_upsampler_temperature": 0.7,
    "prompt_upsampler_top_p": 0.8,
    "prompt_upsampler_top_k": 20,
    "prompt_upsampler_repetition_penalty": 1.0,
    "prompt_upsampler_presence_penalty": 1.5,
    "prompt_upsampler_seed": 3407,
}

REASONER: Final[dict[str, Any]] = {
    "sigma_max": 0.0,
    "fps": 1,
    "video_save_quality": 0,
    "image_save_quality": 0,
    "negative_prompt_keep_metadata": False,
    "duration_template": None,
    "inverse_duration_template": "",
    "inverse_resolution_template": "",
    "max_new_tokens": 1024,
    "do_sample": False,
    "temperature": 1.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
}

TRANSFER: Final[dict[str, Any]] = {
    "num_video_frames_per_chunk": 93,
    "num_conditional_frames": 1,
    "max_frames": 5000,
    "show_control_condition": False,
    "show_input": False,
    "num_first_chunk_conditional_frames": 0,
    "share_vision_temporal_positions": True,
    "emphasize_control_in_prompt": True,
}
# Fields that mean nothing without a hint; upstream refuses them then.
TRANSFER_ONLY: Final = (*TRANSFER, "control_guidance_interval", "negative_prompt_file")

# Applied when exactly one hint is active, over the mode's defaults, under what the client says.
_SOFT = {"guidance": 3.0, "control_guidance": 1.5, "shift": 10.0}
HINT_TUNING: Final[dict[str, dict[str, Any]]] = {
    "edge": _SOFT,
    "blur": _SOFT,
    "depth": _SOFT,
    "seg": {**_SOFT, "control_guidance": 2.0},
    "wsm": {
        "guidance": 1.0,
        "control_guidance": 3.0,
        "shift": 10.0,
        "num_frames": 101,
        "fps": 10,
        "num_video_frames_per_chunk": 101,
    },
}


def resolution_template(mode: ModelMode) -> str | None:
    """The sentence about size in the prompt; by mode, not by frame count, as upstream has it."""
    if mode is ModelMode.REASONER:
        return None
    return IMAGE_RESOLUTION_TEMPLATE if mode in IMAGE_MODES else VIDEO_RESOLUTION_TEMPLATE


Defaults = dict[ModelMode, dict[str, Any]]

# Fields of one sample's quality and size. What decides where a sample reads, or which checks see it, is no default.
CUSTOMIZABLE: Final = frozenset(
    {
        *("num_steps", "guidance", "guidance_interval", "normalize_cfg", "shift"),
        *("resolution", "aspect_ratio", "fps", "num_frames", "negative_prompt"),
        *("video_save_quality", "image_save_quality"),
    }
)
EXPLICIT: Final = ("model_mode", "num_frames")
EXPLICIT_CODE: Final = "explicit_fields_required"


def parse_custom_defaults(obj: object) -> Defaults:
    """`{mode: {field: value}}`, checked as a sample's own fields would be.

    Raises:
        UsageError: code `invalid_defaults`; `errors` are all findings, as `mode.field`.
    """
    if not isinstance(obj, dict) or not obj:
        raise _invalid([FieldError("", "is no JSON object with a mode as its key", "write {mode: {field: value}}")])
    findings: list[FieldError] = []
    found: Defaults = {}
    for name, fields in obj.items():
        if name not in list(ModelMode):
            findings.append(FieldError(str(name)[:64], "is no mode", f"use one of {', '.join(ModelMode)}"))
        elif not isinstance(fields, dict) or not fields:
            findings.append(FieldError(name, "is no JSON object with a field as its key", "write {field: value}"))
        else:
            found[ModelMode(name)] = _fields(name, fields, findings)
    if findings:
        raise _invalid(findings)
    return found


def _fields(mode: str, fields: Mapping[str, Any], findings: list[FieldError]) -> dict[str, Any]:
    for name in fields:
        if name not in CUSTOMIZABLE:
            remedy = f"use one of {', '.join(sorted(CUSTOMIZABLE))}"
            findings.append(FieldError(f"{mode}.{str(name)[:64]}", "can have no default of yours", remedy))
    known = {name: value for name, value in fields.items() if name in CUSTOMIZABLE and value is not None}
    try:
        return SampleOverrides.model_validate(known).given()
    except ValidationError as error:
        for problem in error.errors():
            field = ".".join(str(part) for part in (mode, *problem["loc"]))
            findings.append(FieldError(field, problem["msg"], "write it as in a sample"))
        return {}


def _invalid(findings: list[FieldError]) -> UsageError:
    first = findings[0]
    return UsageError(
        f"invalid defaults file: {first.field} {first.message}".replace("  ", " "),
        remedy=first.remedy,
        errors=findings,
        code="invalid_defaults",
    )


def defaults_sha256(defaults: Mapping[ModelMode, Mapping[str, Any]]) -> str | None:
    """SHA-256 of their canonical JSON, so that two services can be compared; None without any."""
    if not defaults:
        return None
    return hashlib.sha256(canonical_json({str(k): dict(v) for k, v in defaults.items()})).hexdigest()


def require_explicit(samples: Sequence[Mapping[str, Any]]) -> None:
    """For a service with custom defaults: every sample says its mode and its frame count itself.

    Raises:
        ValidationFailed: code `explicit_fields_required`, every missing field as `samples[i].field`.
    """
    findings = [
        FieldError(f"samples[{index}].{field}", "is missing, and this service has defaults of its own", "write it")
        for index, sample in enumerate(samples)
        for field in EXPLICIT
        if sample.get(field) is None
    ]
    if findings:
        raise ValidationFailed(
            f"the service announces custom defaults, so that every sample must name {' and '.join(EXPLICIT)}",
            remedy="write both fields in every sample; nothing was sent",
            errors=findings[:100],
            code=EXPLICIT_CODE,
        )
