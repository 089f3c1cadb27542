"""`ResolvedSample`: a sample with every default filled in, in upstream's 72 fields."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from cosmos3_serve.contract.media import BlurHint, EdgeHint, Hint, latent_frames, size_of
from cosmos3_serve.contract.modes import ACTION_MODES, HINTS, ModelMode
from cosmos3_serve.contract.sample import NegativeMetadataMode

Modality = Literal["image", "video", "action", "transfer", "reasoner"]


class ResolvedSample(BaseModel):
    """What an engine runs; made by `resolve.resolve_sample` only.

    `negative_prompt` None leaves the text to the engine (the framework brings its own for video). Hints carry explicit
    weights. Dump with `model_dump(mode="json")` for `sample_args.json` and the response's `args`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    output_dir: str
    model: str
    extra: dict[str, Any]
    num_outputs: int
    seed: int | None
    tensors_file: str | None
    pickle_file: str | None
    num_steps: int
    guidance: float
    guidance_interval: tuple[float, float] | None
    normalize_cfg: bool
    shift: float
    sigma_max: float
    model_mode: ModelMode
    prompt: str
    negative_prompt: str | None
    duration_template: str | None
    resolution_template: str | None
    inverse_duration_template: str
    inverse_resolution_template: str
    negative_metadata_mode: NegativeMetadataMode
    negative_prompt_keep_metadata: bool
    vision_path: str | None
    condition_frame_indexes_vision: list[int]
    condition_video_keep: Literal["first", "last"]
    resolution: str | None
    aspect_ratio: str | None
    fps: int
    num_frames: int
    video_save_quality: int
    image_save_quality: int
    enable_sound: bool
    sound_path: str | None
    action_path: str | None
    domain_name: str
    image_size: int
    action_chunk_size: int
    raw_action_dim: int | None
    view_point: str | None
    max_new_tokens: int | None
    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    video_fps: float | None
    edge: EdgeHint | None
    blur: BlurHint | None
    depth: Hint | None
    seg: Hint | None
    wsm: Hint | None
    control_guidance: float
    control_guidance_interval: tuple[float, float] | None
    negative_prompt_file: str | None
    num_video_frames_per_chunk: int | None
    num_conditional_frames: int | None
    max_frames: int | None
    show_control_condition: bool | None
    show_input: bool | None
    num_first_chunk_conditional_frames: int | None
    share_vision_temporal_positions: bool | None
    emphasize_control_in_prompt: bool | None
    native_prompt_upsampling: bool
    prompt_upsampler_max_tokens: int
    prompt_upsampler_temperature: float
    prompt_upsampler_top_p: float
    prompt_upsampler_top_k: int
    prompt_upsampler_repetition_penalty: float
    prompt_upsampler_presence_penalty: float
    prompt_upsampler_seed: int | None

    @property
    def hints(self) -> dict[str, Hint]:
        """Active hints in upstream's order."""
        found = ((name, getattr(self, name)) for name in HINTS)
        return {name: hint for name, hint in found if hint is not None}

    @property
    def modality(self) -> Modality:
        if self.hints:
            return "transfer"
        if self.model_mode is ModelMode.REASONER:
            return "reasoner"
        if self.model_mode in ACTION_MODES:
            return "action"
        return "image" if self.num_frames == 1 else "video"

    @property
    def size(self) -> tuple[int, int] | None:
        """(width, height) in pixels; None where it follows the input media (image2image without a size, action tiers
        outside the table, the reasoner). For action it is the nominal canvas of `image_size`."""
        key = str(self.image_size) if self.modality == "action" else self.resolution
        return size_of(key, self.aspect_ratio)

    @property
    def frames(self) -> int:
        """Pixel frames of one inference pass: action clips have chunk + 1, transfer clips run in chunks."""
        if self.modality == "action":
            return self.action_chunk_size + 1
        if self.modality == "transfer" and self.num_frames != 1 and self.num_video_frames_per_chunk is not None:
            return self.num_video_frames_per_chunk
        return self.num_frames

    @property
    def latent_frames(self) -> int:
        """Latent frames of one inference pass."""
        return latent_frames(self.frames)

    @property
    def conditioned(self) -> bool:
        """Whether some latent frames come from `vision_path` instead of noise."""
        return self.vision_path is not None and bool(self.condition_frame_indexes_vision)
