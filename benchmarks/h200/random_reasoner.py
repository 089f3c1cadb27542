"""A folder that is the reasoner at full size without weights: vLLM makes random ones (`--load-format dummy`).

Sizes are those of the understanding tower and the vision tower of Cosmos3-Nano: 36 layers of 4096, 32 heads and 8 for
keys and values, 151,936 words; a vision tower of 27 layers of 1152. The tokenizer is trained here on Python sources: it
has as many words as the real one and the same special ones at the same places, but not its words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WORDS = 151_643
SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip
TEMPLATE = (
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.content is string -%}{{ m.content }}{%- else -%}{%- for part in m.content -%}"
    "{%- if part.type == 'video' -%}<|vision_start|><|video_pad|><|vision_end|>"
    "{%- elif part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>"
    "{%- else -%}{{ part.text }}{%- endif -%}{%- endfor -%}{%- endif -%}{{ '<|im_end|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXT_BYTES = 60_000_000
PIXELS: dict[str, Any] = {
    "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    "processor_class": "Qwen3VLProcessor",
}  # fmt: skip


def config() -> dict[str, Any]:
    first = WORDS
    place = {name: first + n for n, name in enumerate(SPECIAL)}
    return {
        "architectures": ["Cosmos3ForConditionalGeneration"], "model_type": "cosmos3_omni", "dtype": "bfloat16",
        "tie_word_embeddings": False, "image_token_id": place["<|image_pad|>"],
        "video_token_id": place["<|video_pad|>"], "vision_start_token_id": place["<|vision_start|>"],
        "vision_end_token_id": place["<|vision_end|>"],
        "text_config": {
            "model_type": "qwen3_vl_text", "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": place["<|endoftext|>"], "eos_token_id": place["<|im_end|>"], "dtype": "bfloat16",
            "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
            "intermediate_size": 12288, "max_position_embeddings": 262_144, "num_attention_heads": 32,
            "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5_000_000, "mrope_section": [24, 20, 20],
                                "mrope_interleaved": True},
            "use_cache": True, "vocab_size": 151_936, "tie_word_embeddings": False,
        },
        "vision_config": {
            "model_type": "qwen3_vl_vision", "deepstack_visual_indexes": [8, 16, 24], "depth": 27,
            "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1152, "in_channels": 3, "initializer_range": 0.02,
            "intermediate_size": 4304, "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 4096,
            "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
        },
    }  # fmt: skip


def make_model(out: Path, sources: Path) -> None:
    """
    Args:
        sources: folder whose Python files the tokenizer is trained on; minutes on two cores.
    """
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "tokenizer.json").exists():
        _tokenizer(sources).save(str(out / "tokenizer.json"))
    end, pad = WORDS + SPECIAL.index("<|im_end|>"), WORDS + SPECIAL.index("<|endoftext|>")
    files: dict[str, dict[str, Any]] = {
        "config.json": config(),
        "generation_config.json": {"eos_token_id": [end, pad], "pad_token_id": pad},
        "tokenizer_config.json": {
            "tokenizer_class": "Qwen2TokenizerFast", "bos_token": None, "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>", "unk_token": None, "model_max_length": 262_144,
            "additional_special_tokens": SPECIAL[1:], "clean_up_tokenization_spaces": False,
        },
        "preprocessor_config.json": {
            "size": {"longest_edge": 16_777_216, "shortest_edge": 65_536},
            "image_processor_type": "Qwen2VLImageProcessorFast", **PIXELS,
        },
        "video_preprocessor_config.json": {
            "size": {"longest_edge": 25_165_824, "shortest_edge": 4096},
            "video_processor_type": "Qwen3VLVideoProcessor", "fps": 2, "min_frames": 4, "max_frames": 768, **PIXELS,
        },
    }  # fmt: skip
    for name, value in files.items():
        (out / name).write_text(json.dumps(value, indent=1))
    (out / "chat_template.jinja").write_text(TEMPLATE)


def _texts(sources: Path) -> Iterator[str]:
    taken = 0
    for path in sorted(sources.rglob("*.py")):
        text = path.read_text(errors="ignore")[:200_000]
        taken += len(text)
        yield text
        if taken > TEXT_BYTES:
            return


def _tokenizer(sources: Path) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    made = Tokenizer(models.BPE(byte_fallback=False))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        _texts(sources), trainers.BpeTrainer(vocab_size=WORDS, min_frequency=1, initial_alphabet=alphabet)
    )
    count = made.get_vocab_size()
    if count < WORDS:  # so that the special words are where they should be
        said = json.loads(made.to_str())
        said["model"]["vocab"] |= {f"\u0120pad{n}": n for n in range(count, WORDS)}
        made = Tokenizer.from_str(json.dumps(said))
    made.add_special_tokens(SPECIAL)
    assert [made.token_to_id(s) for s in SPECIAL] == list(range(WORDS, WORDS + len(SPECIAL)))
    return made
