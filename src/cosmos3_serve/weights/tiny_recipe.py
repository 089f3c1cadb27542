"""The recipe of the tiny checkpoint: sizes, configurations and the text its tokenizer is trained on. Data only.

One set of sizes feeds the configurations of both readers (diffusers' two-tower transformer, and vLLM's
`Cosmos3ForConditionalGeneration` over the same flat keys), so they cannot drift apart.
"""

from __future__ import annotations

from typing import Any

RECIPE = 1  # part of the cache folder's name: raise it whenever the bytes change on purpose

VOCAB = 1024  # tokenizer and embedding have exactly this many entries
HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 128, 256, 4, 4, 2, 64
MROPE = [12, 10, 10]  # temporal, height, width; sums to HEAD_DIM / 2
ROPE_THETA = 5_000_000.0
LATENT, LATENT_PATCH = 48, 2  # as in the real model, so that latent shapes are the real ones
ACTION_DIM, DOMAINS = 64, 32  # likewise
VISION_HIDDEN, VISION_INTERMEDIATE, VISION_DEPTH, VISION_HEADS, VISION_POSITIONS = 128, 256, 3, 2, 256

SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip

# Qwen's word splitting, so that token boundaries fall where the real tokenizer puts them.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)

# A message holds a string (diffusers) or a list of parts (vLLM, transformers).
CHAT_TEMPLATE = """{%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.content is string -%}{{ m.content }}
{%- else -%}{%- for c in m.content -%}
{%- if c.type == 'image' or 'image' in c or 'image_url' in c -%}<|vision_start|><|image_pad|><|vision_end|>
{%- elif c.type == 'video' or 'video' in c -%}<|vision_start|><|video_pad|><|vision_end|>
{%- elif 'text' in c -%}{{ c.text }}
{%- endif -%}{%- endfor -%}{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""

# Words that prompts, questions and answers of this project use, so that tests do not pay one token per letter.
CORPUS = """system user assistant. The video is 7.9 seconds long and is of 24 FPS. This image is of 256x256 resolution.
This video is of 320x192 resolution. The video is not 1.0 seconds long and is not of 24 FPS. This video is not of 64x64 resolution.
Question: what can be seen in this video? Answer in one sentence. Which object moves first and where does it stop? How many people are there?
Did the gripper close before the arm was lifted? Is the drawer open or closed now? What will the robot do next, and why does it wait?
A robot arm lifts a red cube and lowers it onto a blue plate beside a green bottle. A small wheeled robot carries boxes along a warehouse aisle
between high shelves while a worker in a yellow vest watches. A delivery van turns left at a wet crossing at night; lamps and windows shine on the
road. A forklift raises a pallet, backs away slowly and sets it down near the gate. A drone circles over a wheat field in the morning light. Water
runs from a tap into a steel bowl until it is nearly full. A hand pulls out a drawer, takes a spoon from it and pushes it shut again. Waves roll
over dark rocks on a cloudy day. A cat jumps from the chair to the table and looks out of the window. Snow falls on a quiet street with parked cars.
The camera follows the object, then stays still; the background does not change. Close view with soft light, natural colours, sharp details and
steady motion. Wide view from above, long shadows, clear sky. Blurry, flickering, jerky, distorted, washed out, noisy, badly lit, low quality,
frozen frames, sudden cuts, broken shapes, extra fingers, wrong text. Follow the edge, blur, depth, segmentation and world scenario control.
The policy predicts actions from the first frame; forward dynamics predicts frames from actions; inverse dynamics finds actions between frames.
{"subjects": [{"description": "", "appearance": "", "position": "", "size": "", "pose": "", "number": 1}], "background": "", "lighting": "",
"style": "", "cinematography": {"framing": "", "angle": "", "motion": ""}, "actions": [{"time": "0:00-0:05", "description": ""}],
"duration": "5s", "fps": 24.0, "resolution": {"H": 720, "W": 1280}, "aspect_ratio": "16,9"}
This video is captured from a first-person perspective, a third-person perspective, a wrist-mounted camera, several camera views.
yes no not because before after during while until left right front behind above below between near far inside outside top bottom middle
red green blue yellow orange purple black white grey brown pink small large round square long short heavy light fast slow open closed full empty
zero one two three four five six seven eight nine ten first second third last north south east west morning evening summer winter
person man woman child hand head arm leg wheel door window wall floor roof tree grass river bridge house kitchen table chair lamp cup bottle box
walk run stand sit turn move push pull pick place grasp release open close pour cut fold wipe stack sort drive fly swim climb fall rise appear
""".strip()  # noqa: E501


def transformer_config() -> dict[str, Any]:
    """Arguments of diffusers' `Cosmos3OmniTransformer`."""
    return {
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": VOCAB,
        "rope_theta": ROPE_THETA, "rope_axes_dim": MROPE, "latent_channel": LATENT,
        "latent_patch_size": LATENT_PATCH, "patch_latent_dim": LATENT * LATENT_PATCH**2, "action_gen": True,
        "action_dim": ACTION_DIM, "num_embodiment_domains": DOMAINS, "sound_gen": False,
    }  # fmt: skip


def vae_config() -> dict[str, Any]:
    """Arguments of diffusers' `AutoencoderKLWan`: Wan 2.2's shape (48 channels, 16x16 space, 4x time), few filters."""
    return {
        "base_dim": 4, "decoder_base_dim": 4, "z_dim": LATENT, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 1,
        "temperal_downsample": [False, True, True], "is_residual": True, "in_channels": 12, "out_channels": 12,
        "patch_size": 2, "scale_factor_temporal": 4, "scale_factor_spatial": 16,
        "latents_mean": [0.0] * LATENT, "latents_std": [1.0] * LATENT,
    }  # fmt: skip


def scheduler_config() -> dict[str, Any]:
    """What upstream's converter stores for Nano. Engines build their own from `shift` (spec: schedule gotcha)."""
    return {
        "use_karras_sigmas": True, "use_flow_sigmas": True, "prediction_type": "flow_prediction",
        "sigma_max": 200.0, "sigma_min": 0.147,
    }  # fmt: skip


def model_index(diffusers_version: str) -> dict[str, Any]:
    return {
        "_class_name": "Cosmos3OmniPipeline",
        "_diffusers_version": diffusers_version,
        "default_use_system_prompt": False,  # as Nano's own configuration says
        "enable_safety_checker": False,
        "safety_checker": [None, None],
        "scheduler": ["diffusers", "UniPCMultistepScheduler"],
        "sound_tokenizer": [None, None],
        "text_tokenizer": ["transformers", "Qwen2Tokenizer"],
        "transformer": ["diffusers", "Cosmos3OmniTransformer"],
        "use_native_flow_schedule": False,
        "vae": ["diffusers", "AutoencoderKLWan"],
    }


def vision_config() -> dict[str, Any]:
    return {
        "model_type": "qwen3_vl_vision", "depth": VISION_DEPTH, "hidden_size": VISION_HIDDEN,
        "intermediate_size": VISION_INTERMEDIATE, "num_heads": VISION_HEADS, "in_channels": 3,
        "hidden_act": "gelu_pytorch_tanh", "initializer_range": 0.02, "patch_size": 16, "spatial_merge_size": 2,
        "temporal_patch_size": 2, "out_hidden_size": HIDDEN, "num_position_embeddings": VISION_POSITIONS,
        "deepstack_visual_indexes": [0, 1], "dtype": "float32",
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"},
    }  # fmt: skip


def root_config(ids: dict[str, int]) -> dict[str, Any]:
    """`config.json` as vLLM and transformers read it. `ids`: token ids of `SPECIAL`."""
    text = {
        "model_type": "qwen3_vl_text", "vocab_size": VOCAB, "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "hidden_act": "silu",
        "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "attention_bias": False, "attention_dropout": 0.0,
        "initializer_range": 0.02, "tie_word_embeddings": False, "use_cache": True,
        "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"], "pad_token_id": None,
        "dtype": "float32",
        "rope_parameters": {
            "rope_type": "default", "rope_theta": ROPE_THETA, "mrope_section": MROPE, "mrope_interleaved": True,
        },
    }  # fmt: skip
    return {
        "architectures": ["Cosmos3ForConditionalGeneration"],
        "model_type": "cosmos3_omni",
        "dtype": "float32",
        "tie_word_embeddings": False,
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "text_config": text,
        "vision_config": vision_config(),
    }


def generation_config(ids: dict[str, int]) -> dict[str, Any]:
    return {
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]], "pad_token_id": ids["<|endoftext|>"],
        "do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20,
    }  # fmt: skip


def processor_configs() -> dict[str, dict[str, Any]]:
    """File name -> content of the image and video processor configurations."""
    common = {
        "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        "processor_class": "Qwen3VLProcessor",
    }  # fmt: skip
    image = {"longest_edge": 16777216, "shortest_edge": 65536}
    video = {"longest_edge": 25165824, "shortest_edge": 4096}
    return {
        "preprocessor_config.json": {**common, "size": image, "image_processor_type": "Qwen2VLImageProcessorFast"},
        "video_preprocessor_config.json": {
            **common, "size": video, "video_processor_type": "Qwen3VLVideoProcessor",
            "fps": 2, "min_frames": 4, "max_frames": 768,
        },
    }  # fmt: skip


def tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "unk_token": None, "model_max_length": 262144,
        "additional_special_tokens": SPECIAL[1:], "clean_up_tokenization_spaces": False,
    }  # fmt: skip
