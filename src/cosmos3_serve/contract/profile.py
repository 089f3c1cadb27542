"""`EngineProfile`: what one engine can do and what it assumes when a sample does not say.

Everything that differs between engines is a field here; `resolve.py` reads them and knows no engine by name.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from cosmos3_serve.contract.media import ACTION_IMAGE_SIZES
from cosmos3_serve.contract.modes import ACTION_DOMAINS, ModelMode
from cosmos3_serve.contract.sample import FIELD_NAMES
from cosmos3_serve.contract.wire import DIFFUSERS_BACKEND, FRAMEWORK_BACKEND, FRAMEWORK_REVISION

# Negative prompt of the diffusers engine for video: ours and short, recorded in every sample's args.
VIDEO_NEGATIVE_PROMPT: Final = (
    "blurry, low resolution, compression artifacts, flicker, jitter, warped geometry, broken motion, overexposed, text"
    " overlay, watermark"
)


class EngineProfile(BaseModel):
    """Abilities and defaults of one engine.

    Attributes:
        default_num_steps, default_video_frames, default_max_frames: None leaves the framework's table as it is.
        negative_prompt: default for video; None leaves it to the engine (the framework brings its own).
        use_instead: mode or domain name to the advice given with its refusal.
        supported_domains: action domain to its action width.
        action_chunk_multiple: what `action_chunk_size` must be a multiple of.
        view_points: known labels of `view_point`, None when any goes.
        size_multiple: what width and height must be multiples of.
        honoured_fields: sample fields that the engine acts on; any other is refused unless it says the default.
        transfer: `full` computes edge and blur from `vision_path`, `control_path` needs the control media given.
        strict_inputs: refuse an input that the mode would not read; the framework is left to its own rules.
        wave_cap_s: seconds that one wave may take at most, None without a cap.
        custom_defaults: the operator's, mode to field to value; they stand in place of the framework's.
    """

    model_config = ConfigDict(frozen=True)

    engine: Literal["framework", "diffusers"]
    revision: str
    backend: str
    supported_modes: frozenset[ModelMode]
    use_instead: dict[str, str] = {}
    default_resolution: str = "720"
    default_video_frames: int | None = None
    default_num_steps: int | None = None
    default_max_frames: int | None = None
    negative_prompt: str | None = None
    supported_domains: dict[str, int]
    action_image_sizes: frozenset[int] = ACTION_IMAGE_SIZES
    action_chunk_multiple: int = 1
    view_points: frozenset[str] | None = None
    size_multiple: int = 1
    honoured_fields: frozenset[str]
    transfer: Literal["full", "control_path", "none"]
    sound: bool = True
    strict_inputs: bool = False
    wave_cap_s: float | None = None
    custom_defaults: dict[ModelMode, dict[str, Any]] = {}


_ALWAYS_REFUSED: Final = frozenset({"output_dir", "defaults_file", "tensors_file", "pickle_file"})

FRAMEWORK_PROFILE: Final = EngineProfile(
    engine="framework",
    revision=FRAMEWORK_REVISION,
    backend=FRAMEWORK_BACKEND,
    supported_modes=frozenset(ModelMode),
    supported_domains=ACTION_DOMAINS,
    honoured_fields=frozenset(FIELD_NAMES) - _ALWAYS_REFUSED,
    transfer="full",
    wave_cap_s=300.0,
)

# The framework's domains, and names under which the pinned diffusers release knows rows of the same action heads;
# `libero` has an id there but no fixed width.
DIFFUSERS_DOMAINS: Final[dict[str, int]] = {
    **ACTION_DOMAINS,
    "galbot": 30,
    "agibot_gear_gripper": 29,
    "agibot_gear_gripper_ext": 29,
    "hand_pose": 57,
}

DIFFUSERS_FIELDS: Final = frozenset(
    {
        *("name", "model", "extra", "num_outputs", "seed"),
        *("num_steps", "guidance", "guidance_interval", "normalize_cfg", "shift"),
        *("model_mode", "prompt", "prompt_path", "negative_prompt", "negative_prompt_file"),
        *("duration_template", "resolution_template", "inverse_duration_template", "inverse_resolution_template"),
        *("negative_metadata_mode", "negative_prompt_keep_metadata"),
        *("vision_path", "condition_frame_indexes_vision", "condition_video_keep"),
        *("resolution", "aspect_ratio", "fps", "num_frames", "video_save_quality", "image_save_quality"),
        *("action_path", "domain_name", "image_size", "action_chunk_size", "view_point"),
        *("edge", "blur", "depth", "seg", "wsm", "control_guidance", "control_guidance_interval"),
        *("num_video_frames_per_chunk", "num_conditional_frames", "num_first_chunk_conditional_frames", "max_frames"),
        *("show_control_condition", "show_input", "share_vision_temporal_positions", "emphasize_control_in_prompt"),
    }
)

_DIFFUSERS_MODES: Final = frozenset(ModelMode) - {
    ModelMode.IMAGE2IMAGE,
    ModelMode.AUDIO_IMAGE2VIDEO,
    ModelMode.REASONER,
}
_DIFFUSERS_USE_INSTEAD: Final = {
    "libero": "libero has no fixed action width; use the domain whose width your actions have",
    "image2image": "use image2video with the same image, or the framework engine",
    "audio_image2video": "use image2video and add the sound afterwards, or the framework engine",
    "reasoner": "ask the reasoner service: POST /v1/chat/completions",
}


def diffusers_profile(version: str, *, tiny: bool = False, blockworld: bool = False) -> EngineProfile:
    """Profile of the diffusers engine.

    Args:
        version: of the diffusers package, such as `0.42.1`.
        tiny: the tiny checkpoint: resolution 256, at most 25 frames and 4 steps unless a sample asks otherwise.
        blockworld: the block-world checkpoint: resolution 256, 9 frames, the modes' own steps.
    """
    return EngineProfile(
        engine="diffusers",
        revision=f"diffusers-{version}",
        backend=DIFFUSERS_BACKEND,
        supported_modes=_DIFFUSERS_MODES,
        use_instead=_DIFFUSERS_USE_INSTEAD,
        default_resolution="256" if tiny or blockworld else "720",
        default_video_frames=25 if tiny else 9 if blockworld else None,
        default_num_steps=4 if tiny else None,
        default_max_frames=25 if tiny else 17 if blockworld else None,
        negative_prompt=VIDEO_NEGATIVE_PROMPT,
        supported_domains=DIFFUSERS_DOMAINS,
        action_image_sizes=frozenset({256, 480, 704, 720, 768}),
        action_chunk_multiple=4,  # the clip has chunk + 1 frames and the video codec of the model makes only 4k + 1
        view_points=frozenset({"ego_view", "third_person_view", "wrist_view", "concat_view"}),
        size_multiple=16,
        honoured_fields=DIFFUSERS_FIELDS,
        transfer="control_path",
        sound=False,
        strict_inputs=True,
    )
