"""`SampleOverrides`: the 74 fields that a client may write on a sample.

Types and limits are those of the pinned framework, with pydantic's lax coercion as measured there: `"24"` and `24.0`
are 24, `24.5` is refused, a resolution is the string `"256"` and never the number. An explicit null is the same as an
absent field; `""` is not. Bounds the framework leaves open come from `limits.py`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from cosmos3_serve.contract import limits
from cosmos3_serve.contract.media import AspectRatio, BlurHint, EdgeHint, Hint, Resolution, Uri
from cosmos3_serve.contract.modes import HINTS, ModelMode


class NegativeMetadataMode(StrEnum):
    """What is said about duration and size in the negative prompt: nothing, the same, or the inverse."""

    NONE = "none"
    SAME = "same"
    INVERSE = "inverse"


def _prompt_size(text: str) -> str:
    if len(text) > limits.MAX_PROMPT_BYTES or len(text.encode(errors="replace")) > limits.MAX_PROMPT_BYTES:
        raise ValueError(f"text should be at most {limits.MAX_PROMPT_BYTES} bytes of UTF-8")
    return text


Prompt = Annotated[str, AfterValidator(_prompt_size)]
Template = Annotated[str, Field(max_length=limits.MAX_TEMPLATE_CHARS)]
Label = Annotated[str, Field(max_length=limits.MAX_LABEL_CHARS)]
Positive = Annotated[int, Field(gt=0)]
Frames = Annotated[int, Field(gt=0, le=limits.MAX_NUM_FRAMES)]
Steps = Annotated[int, Field(gt=0, le=limits.MAX_NUM_STEPS)]
Fps = Annotated[int, Field(ge=1, le=limits.MAX_FPS)]
Seed = Annotated[int, Field(ge=limits.MIN_SEED, le=limits.MAX_SEED)]
Tokens = Annotated[int, Field(gt=0, le=limits.MAX_NEW_TOKENS)]
NonNegative = Annotated[float, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Interval = tuple[NonNegative, NonNegative]
FrameIndexes = Annotated[list[int], Field(max_length=limits.MAX_CONDITION_INDEXES)]


class SampleOverrides(BaseModel):
    """One sample as a client writes it; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    # identity and bookkeeping
    name: Label | None = None
    output_dir: Uri | None = None
    model: Label | None = None
    extra: dict[str, Any] | None = None
    num_outputs: Positive | None = None
    seed: Seed | None = None
    tensors_file: Uri | None = None
    pickle_file: Uri | None = None
    defaults_file: Uri | None = None
    # sampling
    num_steps: Steps | None = None
    guidance: Annotated[float, Field(ge=0, le=7)] | None = None
    guidance_interval: Interval | None = None
    normalize_cfg: bool | None = None
    shift: float | None = None
    sigma_max: float | None = None
    # mode and text
    model_mode: ModelMode | None = None
    prompt: Prompt | None = None
    prompt_path: Uri | None = None
    negative_prompt: Prompt | None = None
    duration_template: Template | None = None
    resolution_template: Template | None = None
    inverse_duration_template: Template | None = None
    inverse_resolution_template: Template | None = None
    negative_metadata_mode: NegativeMetadataMode | None = None
    negative_prompt_keep_metadata: bool | None = None
    # vision
    vision_path: Uri | None = None
    condition_frame_indexes_vision: FrameIndexes | None = None
    condition_video_keep: Literal["first", "last"] | None = None
    resolution: Resolution | None = None
    aspect_ratio: AspectRatio | None = None
    fps: Fps | None = None
    num_frames: Frames | None = None
    video_save_quality: Annotated[int, Field(ge=0, le=10)] | None = None
    image_save_quality: Annotated[int, Field(ge=0, le=100)] | None = None
    # sound
    enable_sound: bool | None = None
    sound_path: Uri | None = None
    # action
    action_path: Uri | None = None
    domain_name: Label | None = None
    image_size: Positive | None = None
    action_chunk_size: Annotated[int, Field(gt=0, le=limits.MAX_ACTION_CHUNK)] | None = None
    raw_action_dim: Positive | None = None
    view_point: Label | None = None
    # reasoner
    max_new_tokens: Tokens | None = None
    do_sample: bool | None = None
    temperature: Annotated[float, Field(gt=0, le=100)] | None = None
    top_k: Positive | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    repetition_penalty: PositiveFloat | None = None
    presence_penalty: float | None = None
    video_fps: PositiveFloat | None = None
    # transfer
    edge: EdgeHint | None = None
    blur: BlurHint | None = None
    depth: Hint | None = None
    seg: Hint | None = None
    wsm: Hint | None = None
    control_guidance: Annotated[float, Field(ge=0, le=10)] | None = None
    control_guidance_interval: Interval | None = None
    negative_prompt_file: Uri | None = None
    num_video_frames_per_chunk: Frames | None = None
    num_conditional_frames: Annotated[int, Field(ge=0, le=limits.MAX_NUM_FRAMES)] | None = None
    max_frames: Frames | None = None
    show_control_condition: bool | None = None
    show_input: bool | None = None
    num_first_chunk_conditional_frames: Annotated[int, Field(ge=0, le=limits.MAX_NUM_FRAMES)] | None = None
    share_vision_temporal_positions: bool | None = None
    emphasize_control_in_prompt: bool | None = None
    # prompt upsampling
    prompt_upsampling: bool | None = None
    prompt_upsampler_max_tokens: Tokens | None = None
    prompt_upsampler_temperature: NonNegative | None = None
    prompt_upsampler_top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    prompt_upsampler_top_k: Annotated[int, Field(ge=0)] | None = None
    prompt_upsampler_repetition_penalty: PositiveFloat | None = None
    prompt_upsampler_presence_penalty: float | None = None
    prompt_upsampler_seed: Seed | None = None

    @property
    def hints(self) -> dict[str, Hint]:
        """Active hints in upstream's order."""
        found = ((name, getattr(self, name)) for name in HINTS)
        return {name: hint for name, hint in found if hint is not None}

    def given(self) -> dict[str, Any]:
        """Fields that carry a value, as Python objects; nulls are the same as absent."""
        return {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}


FIELD_NAMES: Final = tuple(SampleOverrides.model_fields)
