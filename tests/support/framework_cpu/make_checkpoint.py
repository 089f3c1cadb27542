"""Test support: a tiny checkpoint with RANDOM weights that the pinned framework loads. Its media mean nothing.

Run it with the framework's interpreter: `COSMOS_TRAINING=0 COSMOS_DEVICE=cpu python make_checkpoint.py FOLDER`, with
this folder on PYTHONPATH. All that upstream reads is written into FOLDER: config, weights, processor, autoencoder.
"""

import copy
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("COSMOS_TRAINING", "0")
os.environ.setdefault("COSMOS_DEVICE", "cpu")

import tiny_sound
import tiny_vae
import torch

SEED = 0
SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
]
PART = (
    "{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif c['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ c['text'] }}{% endif %}"
)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}" + PART + "{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def processor(out: Path) -> Any:
    """A byte-level tokenizer without merges, and Qwen3-VL's processors; the tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import Qwen2TokenizerFast, Qwen2VLImageProcessorFast, Qwen3VLProcessor, Qwen3VLVideoProcessor

    vocab = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytes_only = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    (out / "vocab.json").write_text(json.dumps(vocab))
    (out / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = Qwen2TokenizerFast(
        tokenizer_object=bytes_only,
        unk_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL,
        chat_template=TEMPLATE,
    )
    grid = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}
    images = Qwen2VLImageProcessorFast(**grid, size={"shortest_edge": 32 * 32, "longest_edge": 128 * 128})
    videos = Qwen3VLVideoProcessor(**grid)
    bundle = Qwen3VLProcessor(
        image_processor=images, tokenizer=tokenizer, video_processor=videos, chat_template=TEMPLATE
    )
    bundle.save_pretrained(out)
    return tokenizer


def language_model(token_id: Any) -> dict[str, Any]:
    width = 256
    text = {
        "model_type": "qwen3_vl_text", "dtype": "bfloat16", "vocab_size": 320, "hidden_size": width, "head_dim": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "initializer_range": 0.02, "max_position_embeddings": 262144,
        "attention_bias": False, "attention_dropout": 0.0, "use_cache": True, "rope_theta": 5000000,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [12, 10, 10], "rope_type": "default"},
        "bos_token_id": token_id("<|endoftext|>"), "eos_token_id": token_id("<|im_end|>"),
    }  # fmt: skip
    vision = {
        "model_type": "qwen3_vl", "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2,
        "in_channels": 3, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": width,
        "num_position_embeddings": 64, "deepstack_visual_indexes": [0], "hidden_act": "gelu_pytorch_tanh",
        "initializer_range": 0.02,
    }  # fmt: skip
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "tie_word_embeddings": False,
        "image_token_id": token_id("<|image_pad|>"),
        "video_token_id": token_id("<|video_pad|>"),
        "vision_start_token_id": token_id("<|vision_start|>"),
        "vision_end_token_id": token_id("<|vision_end|>"),
        "text_config": text,
        "vision_config": vision,
    }


def model_config(out: Path) -> dict[str, Any]:
    """Upstream's own config of Cosmos3-Nano, made small."""
    from cosmos_framework.inference.common.config import CONFIG_DIR, deserialize_config_dict

    model: dict[str, Any] = deserialize_config_dict(CONFIG_DIR / "model/Cosmos3-Nano.yaml")["model"]
    config = model["config"]
    config |= {"resolution": "256", "sound_gen": True, "sound_dim": tiny_sound.CHANNELS}
    # From the checkpoint's own folder, as upstream does where a config names no path.
    config["sound_tokenizer"] |= {
        "bucket_name": "", "avae_path": "", "hop_size": tiny_sound.HOP, "sample_rate": tiny_sound.RATE,
        "io_channels": tiny_sound.CHANNELS, "object_store_credential_path_pretrained": "",
    }  # fmt: skip
    config["ema"]["enabled"] = False
    config["activation_checkpointing"]["mode"] = "none"
    config["parallelism"] |= {"data_parallel_shard_degree": 1, "enable_inference_mode": True}
    config["compile"]["enabled"] = False
    config["tokenizer"] |= {
        "_target_": "tiny_vae.interface",
        "bucket_name": "",
        "vae_path": str(out / "tiny_vae.pth"),
        "object_store_credential_path_pretrained": "",
    }
    vlm = config["vlm_config"]
    vlm["model_name"] = "tiny/random"
    vlm["pretrained_weights"]["enabled"] = False
    vlm["model_instance"]["config"]["base_config"]["json_file"] = str(out / "tiny_lm.json")
    vlm["tokenizer"] = {"_target_": vlm["tokenizer"]["_target_"], "tokenizer_type": str(out)}
    return model


def weights(model: dict[str, Any], sound: Path) -> dict[str, torch.Tensor]:
    from cosmos_framework.inference.common.checkpoints import _AVAE_LEGACY_CKPT_NAME, _materialize_avae_ckpt
    from cosmos_framework.inference.model import Cosmos3OmniConfig, Cosmos3OmniModel
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    own = copy.deepcopy(model)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(sound, folder, dirs_exist_ok=True)
        _materialize_avae_ckpt(folder)
        own["config"]["sound_tokenizer"]["avae_path"] = f"{folder}/{_AVAE_LEGACY_CKPT_NAME}"
        built = Cosmos3OmniModel(Cosmos3OmniConfig(model=own))
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if "tokenizer_" in name:
                continue
            if "norm" in name and name.endswith("weight"):
                parameter.fill_(1.0)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                parameter.normal_(0, 0.02)
    return {name: value.detach().contiguous().clone() for name, value in get_model_state_dict(built).items()}


def main(out: Path) -> None:
    from safetensors.torch import save_file

    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    tokenizer = processor(out)
    (out / "tiny_lm.json").write_text(json.dumps(language_model(tokenizer.convert_tokens_to_ids)))
    model = model_config(out)
    tiny_vae.save_random(out / "tiny_vae.pth")
    tiny_sound.save_random(out / "sound_tokenizer")
    tensors = weights(model, out / "sound_tokenizer")
    save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "WEIGHTS.json").write_text(json.dumps({"weights": "random", "seed": SEED}))
    # Last: whoever finds it finds all the rest.
    (out / "config.json").write_text(json.dumps({"model_type": "cosmos3_omni", "model": model}, indent=1))
    print(f"{len(tensors)} tensors, {sum(t.numel() for t in tensors.values())} parameters, random")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
