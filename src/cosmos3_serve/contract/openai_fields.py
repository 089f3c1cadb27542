"""Fields of OpenAI's image and video requests, with those that vLLM-Omni and SGLang add: acted on, neutral, refused.

`docs/openai.md` shows these tables. A field that is in none of them is refused like those in `REFUSED`.
"""

from __future__ import annotations

from typing import Any, Final

# Field of the request to the field of the sample that it sets.
SAMPLE_FIELDS: Final[dict[str, str]] = {
    "prompt": "prompt",
    "negative_prompt": "negative_prompt",
    "num_inference_steps": "num_steps",
    "guidance_scale": "guidance",
    "flow_shift": "shift",
    "seed": "seed",
}
VIDEO_SAMPLE_FIELDS: Final[dict[str, str]] = {
    **SAMPLE_FIELDS,
    "fps": "fps",
    "num_frames": "num_frames",
    "enable_sound": "enable_sound",
    "generate_sound": "enable_sound",
    "sound": "enable_sound",
}

# Fields that name the one conditioning picture or clip, and the key of their JSON form.
REFERENCES: Final[dict[str, str | None]] = {
    "input_reference": "image_url",
    "image_reference": "image_url",
    "video_reference": "video_url",
    "reference_url": None,
}

# Fields with a meaning of their own.
IMAGE_OWN: Final = ("model", "size", "width", "height", "response_format", "extra_params")
VIDEO_OWN: Final = ("model", "size", "width", "height", "seconds", "extra_params", *REFERENCES)

IMAGE_FIELDS: Final = (*SAMPLE_FIELDS, *IMAGE_OWN)
VIDEO_FIELDS: Final = (*VIDEO_SAMPLE_FIELDS, *VIDEO_OWN)

# Fields that may be sent with a value that asks for what happens anyway.
NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "n": (1, "1"),
    "stream": (False, "false"),
    "quality": ("auto", "standard"),
    "background": ("auto", "opaque"),
    "output_format": ("jpeg",),
    "moderation": ("auto",),
}

# Sample fields that `extra_params` may set: options of the model that have no field of their own in these APIs.
EXTRA_PARAMS: Final = (
    "guidance_interval",
    "normalize_cfg",
    "negative_metadata_mode",
    "negative_prompt_keep_metadata",
    "condition_frame_indexes_vision",
    "condition_video_keep",
    "video_save_quality",
    "image_save_quality",
)

# Known fields that are refused, and what to do instead.
REFUSED: Final[dict[str, str]] = {
    "n": "send one request for each picture; requests of one shape share an inference batch",
    "stream": "poll GET /v1/videos/{id}, or follow GET /v1/batches/{id}/events",
    "user": "leave it out; the bearer token names the tenant",
    "safety_identifier": "leave it out; the bearer token names the tenant",
    "quality": "leave it out, or set num_inference_steps",
    "style": "say it in the prompt",
    "background": "say it in the prompt",
    "output_format": "leave it out; pictures are JPEG",
    "output_compression": "set extra_params.image_save_quality or extra_params.video_save_quality",
    "output_quality": "set extra_params.image_save_quality or extra_params.video_save_quality",
    "moderation": "leave it out; the service's guardrails check every request",
    "partial_images": "leave it out; a picture is sent once it is complete",
    "guidance_scale_2": "leave it out; this model denoises in one stage",
    "boundary_ratio": "leave it out; this model denoises in one stage",
    "true_cfg_scale": "use guidance_scale",
    "audio_reference": "POST /v1/batches takes sound_path on engines that read sound",
    "sound_duration": "leave it out; sound is as long as its video",
    "control_reference": "POST /v1/batches takes edge, blur, depth, seg and wsm with a control_path",
    "control_type": "POST /v1/batches takes edge, blur, depth, seg and wsm with a control_path",
    "enable_frame_interpolation": "ask for more num_frames at a higher fps",
    "lora": "leave it out; the service runs the checkpoint it was started with",
    "output_path": "leave it out; the service decides where files go",
}
