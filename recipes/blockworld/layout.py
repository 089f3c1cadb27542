"""Sizes and files of the block-world checkpoint: the layout of the tiny one (`cosmos3_serve.weights.tiny_recipe`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from cosmos3_serve.blockworld.words import words
from cosmos3_serve.weights import tiny_recipe as tiny

RECIPE = 1
VOCAB = 768
HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 256, 512, 6, 4, 2, 64
MROPE = [12, 10, 10]
ACTION_DIM, DOMAINS = 16, 32
VISION_HIDDEN, VISION_INTERMEDIATE, VISION_DEPTH, VISION_HEADS = 128, 320, 4, 2
DEEPSTACK = [1, 2]
VAE_ENCODER, VAE_DECODER = 12, 16

# Words of the service's own sentences around a prompt, so that each is one token.
SENTENCES = """system user assistant seconds. The video is 0.4 seconds long and is of 24 FPS. This image is of 256x256 resolution.
This video is of 192x320 resolution. <0.1 seconds> <1.2 seconds> blurry, low resolution, compression artifacts, flicker, jitter, warped
geometry, broken motion, overexposed, text overlay, watermark
{"cinematography": {"framing": "This video is captured from a first-person perspective looking at the scene."}, "actions": [{"time":
"0:00-0:01", "description": "The gripper moves the red cube."}], "duration": "0s", "fps": 24.0, "resolution": {"H": 192, "W": 320},
"aspect_ratio": "16,9"} This video is captured from a third-person perspective looking towards the agent from the front.
The video is not 1.0 seconds long and is not of 24 FPS. This video is not of 192x320 resolution."""  # noqa: E501


def transformer_config() -> dict[str, Any]:
    return {
        **tiny.transformer_config(),
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": VOCAB,
        "rope_axes_dim": MROPE, "action_dim": ACTION_DIM, "num_embodiment_domains": DOMAINS,
    }  # fmt: skip


def vae_config() -> dict[str, Any]:
    return {**tiny.vae_config(), "base_dim": VAE_ENCODER, "decoder_base_dim": VAE_DECODER}


def vision_config() -> dict[str, Any]:
    return {
        **tiny.vision_config(),
        "depth": VISION_DEPTH, "hidden_size": VISION_HIDDEN, "intermediate_size": VISION_INTERMEDIATE,
        "num_heads": VISION_HEADS, "out_hidden_size": HIDDEN, "deepstack_visual_indexes": DEEPSTACK,
    }  # fmt: skip


def root_config(ids: dict[str, int]) -> dict[str, Any]:
    config = tiny.root_config(ids)
    config["text_config"] |= {
        "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
    }  # fmt: skip
    config["text_config"]["rope_parameters"] |= {"mrope_section": MROPE}
    return {**config, "vision_config": vision_config()}


def tokenizer() -> Any:
    """The tokenizer, trained on the language of the scenes: the same each time."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tok: Any = Tokenizer(models.BPE(byte_fallback=False))
    tok.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(tiny.SPLIT), "isolated")
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(tiny.SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tok.train_from_iterator([words(), SENTENCES * 3, tiny.CORPUS], trainer)
    tok.add_special_tokens(tiny.SPECIAL)
    if tok.get_vocab_size() != VOCAB:
        raise RuntimeError(f"the tokenizer has {tok.get_vocab_size()} entries instead of {VOCAB}")
    return tok


def new_transformer() -> Any:
    from diffusers import Cosmos3OmniTransformer

    return Cosmos3OmniTransformer(**transformer_config())


def new_vae(mean: list[float] | None = None, std: list[float] | None = None) -> Any:
    from diffusers import AutoencoderKLWan

    config = vae_config()
    if mean is not None and std is not None:
        config |= {"latents_mean": mean, "latents_std": std}
    return AutoencoderKLWan(**config)


class VisionBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = torch.nn.LayerNorm(VISION_HIDDEN, eps=1e-6)
        self.norm2 = torch.nn.LayerNorm(VISION_HIDDEN, eps=1e-6)
        self.attn = torch.nn.Module()
        self.attn.qkv = torch.nn.Linear(VISION_HIDDEN, 3 * VISION_HIDDEN)
        self.attn.proj = torch.nn.Linear(VISION_HIDDEN, VISION_HIDDEN)
        self.mlp = torch.nn.Module()
        self.mlp.linear_fc1 = torch.nn.Linear(VISION_HIDDEN, VISION_INTERMEDIATE)
        self.mlp.linear_fc2 = torch.nn.Linear(VISION_INTERMEDIATE, VISION_HIDDEN)


class VisionMerger(torch.nn.Module):
    def __init__(self, late: bool) -> None:
        super().__init__()
        self.use_postshuffle_norm = late
        self.norm = torch.nn.LayerNorm(VISION_HIDDEN * (4 if late else 1), eps=1e-6)
        self.linear_fc1 = torch.nn.Linear(4 * VISION_HIDDEN, 4 * VISION_HIDDEN)
        self.linear_fc2 = torch.nn.Linear(4 * VISION_HIDDEN, HIDDEN)


class Vision(torch.nn.Module):
    """Parameters of transformers' `Qwen3VLVisionModel` under its names; `towers.see` is its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = torch.nn.Module()
        self.patch_embed.proj = torch.nn.Conv3d(3, VISION_HIDDEN, (2, 16, 16), stride=(2, 16, 16))
        self.pos_embed = torch.nn.Embedding(256, VISION_HIDDEN)
        self.blocks = torch.nn.ModuleList([VisionBlock() for _ in range(VISION_DEPTH)])
        self.merger = VisionMerger(False)
        self.deepstack_merger_list = torch.nn.ModuleList([VisionMerger(True) for _ in DEEPSTACK])


def new_vision() -> Vision:
    return Vision()


def export(out: Path, transformer: Any, vae: Any, vision: Any, card: dict[str, Any]) -> None:
    """Write the unified checkpoint, all weights in bfloat16, into the empty or missing directory `out`.

    Args:
        card: what `WEIGHTS.json` says beside `weights` and the sizes.
    """
    import diffusers
    from diffusers import UniPCMultistepScheduler
    from safetensors.torch import save_file

    out.mkdir(parents=True, exist_ok=True)
    tok = tokenizer()
    ids = {special: tok.token_to_id(special) for special in tiny.SPECIAL}
    for folder in (out, out / "text_tokenizer"):
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text(tok.to_str(pretty=False) + "\n", encoding="utf-8")
        _write(folder / "tokenizer_config.json", tiny.tokenizer_config())
        (folder / "chat_template.jinja").write_text(tiny.CHAT_TEMPLATE, encoding="utf-8")
    transformer.to(torch.bfloat16).save_pretrained(str(out / "transformer"))
    vae.to(torch.bfloat16).save_pretrained(str(out / "vae"))
    UniPCMultistepScheduler(**tiny.scheduler_config()).save_pretrained(str(out / "scheduler"))
    index = tiny.model_index(diffusers.__version__)
    _write(out / "model_index.json", index)
    (out / "vision_encoder").mkdir(exist_ok=True)
    tensors = {name: t.to(torch.bfloat16).contiguous().cpu() for name, t in sorted(vision.state_dict().items())}
    save_file(tensors, str(out / "vision_encoder" / "model.safetensors"), metadata={"format": "pt"})
    _write(out / "vision_encoder" / "config.json", {**vision_config(), "architectures": ["Qwen3VLVisionModel"]})
    _write(out / "config.json", root_config(ids))
    _write(
        out / "generation_config.json",
        {**tiny.generation_config(ids), "do_sample": False, "temperature": None, "top_p": None, "top_k": None},
    )
    for name, content in tiny.processor_configs().items():
        # Pictures of the 256 tier are seen as they are, not enlarged.
        _write(out / name, content | ({"size": {**content["size"], "shortest_edge": 4096}}))
    parts = {
        "transformer": _count(transformer), "vae": _count(vae), "vision_encoder": _count(vision),
    }  # fmt: skip
    _write(
        out / "WEIGHTS.json",
        {"weights": "blockworld", "recipe": RECIPE, "params": sum(parts.values()), "parts": parts, **card},
    )
    seal(out)
    for path in [out, *out.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def seal(out: Path) -> None:
    """Write the manifest: path, size and SHA-256 of every file. Again after any change, of the card too."""
    from cosmos3_serve.weights.blockworld import MANIFEST
    from cosmos3_serve.weights.manifest import read_payload

    files = [[f.path, f.size, f.sha256] for f in read_payload(out)]
    (out / MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")


def _count(module: Any) -> int:
    return sum(t.numel() for t in module.state_dict().values())


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
