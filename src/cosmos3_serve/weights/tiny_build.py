"""Build the tiny checkpoint's files. Heavy imports live here; `tiny.py` decides when to build and checks the result.

Weights come from numpy's PCG64, one stream per tensor keyed by (seed, part, tensor name): the same seed gives the same
bytes whatever the order of creation. Nothing is downloaded. The diffusers pipeline class itself is never imported,
because its module imports `cosmos_guardrail` wherever that package happens to be installed.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

from cosmos3_serve.weights import tiny_recipe as recipe


def build(out: Path, seed: int) -> None:
    """Write every file of the checkpoint into the existing empty directory `out`.

    Layout: `model_index.json scheduler/ text_tokenizer/ vae/` for diffusers; `transformer/` for both readers;
    `vision_encoder/ config.json generation_config.json` and tokenizer and processor files at the root for vLLM and
    transformers; `WEIGHTS.json` says that the weights are random.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import diffusers
    from diffusers import AutoencoderKLWan, Cosmos3OmniTransformer, UniPCMultistepScheduler

    tokenizer_json, ids, visible = _tokenizer()
    for folder in (out, out / "text_tokenizer"):
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
        _write_json(folder / "tokenizer_config.json", recipe.tokenizer_config())
        (folder / "chat_template.jinja").write_text(recipe.CHAT_TEMPLATE, encoding="utf-8")

    transformer = Cosmos3OmniTransformer(**recipe.transformer_config())
    vae = AutoencoderKLWan(**recipe.vae_config())
    params = {
        "transformer": _fill(transformer, "transformer", seed, 0.05),
        "vae": _fill(vae, "vae", seed, None),
    }
    _silence(transformer.lm_head.weight, visible)
    transformer.save_pretrained(str(out / "transformer"))
    vae.save_pretrained(str(out / "vae"))
    UniPCMultistepScheduler(**recipe.scheduler_config()).save_pretrained(str(out / "scheduler"))
    _write_json(out / "model_index.json", recipe.model_index(diffusers.__version__))

    params["vision_encoder"] = _vision_encoder(out / "vision_encoder", seed)
    _write_json(out / "config.json", recipe.root_config(ids))
    _write_json(out / "generation_config.json", recipe.generation_config(ids))
    for name, content in recipe.processor_configs().items():
        _write_json(out / name, content)
    _write_json(
        out / "WEIGHTS.json",
        {"weights": "random", "recipe": recipe.RECIPE, "seed": seed, "params": sum(params.values()), "parts": params},
    )
    for path in [out, *out.rglob("*")]:  # safetensors files are written 0600: other users of the cache could not read
        path.chmod(0o755 if path.is_dir() else 0o644)


def _tokenizer() -> tuple[str, dict[str, int], list[bool]]:
    """A byte-level BPE tokenizer: its JSON, the ids of the special tokens, and for each id whether its text is visible.

    Trained here rather than stored, since a thousand merges are a worse thing to review than the words they come from.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tok: Any = Tokenizer(models.BPE(byte_fallback=False))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(recipe.SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.VOCAB - len(recipe.SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tok.train_from_iterator([recipe.CORPUS], trainer)
    tok.add_special_tokens(recipe.SPECIAL)
    if tok.get_vocab_size() != recipe.VOCAB:
        raise RuntimeError(f"the tokenizer has {tok.get_vocab_size()} entries instead of {recipe.VOCAB}")
    texts = [tok.decode([i], skip_special_tokens=True) for i in range(recipe.VOCAB)]
    visible = [bool(t) and t.replace("\n", "").isprintable() and "\ufffd" not in t for t in texts]
    return tok.to_str(pretty=True) + "\n", {s: tok.token_to_id(s) for s in recipe.SPECIAL}, visible


def _vision_encoder(out: Path, seed: int) -> int:
    from safetensors.torch import save_file
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

    config = recipe.vision_config()
    model = Qwen3VLVisionModel(Qwen3VLVisionConfig(**config)).float()
    count = _fill(model, "vision_encoder", seed, 0.05)
    out.mkdir()
    tensors = {name: tensor.contiguous() for name, tensor in sorted(model.state_dict().items())}
    save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
    _write_json(out / "config.json", {**config, "architectures": ["Qwen3VLVisionModel"]})
    return count


def _fill(module: Any, part: str, seed: int, std: float | None) -> int:
    """Overwrite every tensor of `module`; `std` None scales by fan-in. Returns the number of parameters."""
    import numpy as np
    import torch

    count = 0
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            leaf = name.rsplit(".", 1)[-1]
            count += tensor.numel()
            if leaf == "gamma" or (leaf == "weight" and tensor.ndim == 1):  # normalization scales
                tensor.fill_(1.0)
            elif leaf == "bias" and tensor.ndim == 1:
                tensor.zero_()
            else:
                stream = np.random.Generator(np.random.PCG64([seed, zlib.crc32(f"{part}/{name}".encode())]))
                scale = std if std is not None else (tensor[0].numel() ** -0.5 if tensor.ndim > 1 else 0.05)
                values = stream.standard_normal(tuple(tensor.shape), dtype=np.float32) * np.float32(scale)
                tensor.copy_(torch.from_numpy(values))
    return count


def _silence(lm_head: Any, visible: list[bool]) -> None:
    """Zero the rows of tokens without visible text: every answer token then shows, and a stream starts at once."""
    import torch

    with torch.no_grad():
        lm_head[[i for i, seen in enumerate(visible) if not seen]] = 0.0


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
