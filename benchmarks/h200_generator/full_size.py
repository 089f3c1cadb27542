"""A Cosmos3-Nano of full size with RANDOM weights, made on the device and never saved, behind our own engine.

Sizes: Nano's published configuration and the Wan 2.2 video autoencoder's. The tokenizer is the tiny checkpoint's, so a
prompt costs more tokens than with the real one; the counts are recorded with the results.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from cosmos3_serve.contract.profile import diffusers_profile
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.generator.engines.diffusers import engine as engine_module
from cosmos3_serve.generator.engines.diffusers.engine import DiffusersEngine
from cosmos3_serve.generator.engines.diffusers.loader import Components, diffusers_version
from cosmos3_serve.generator.engines.job import EngineJob
from cosmos3_serve.weights import tiny_recipe
from cosmos3_serve.weights.checkpoint import Checkpoint

NANO: dict[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rope_theta": 5_000_000.0,
    "rope_axes_dim": [24, 20, 20], "latent_channel": 48, "latent_patch_size": 2, "patch_latent_dim": 192,
    "action_gen": True, "action_dim": 64, "num_embodiment_domains": 32, "sound_gen": False,
}  # fmt: skip
WAN_2_2: dict[str, Any] = {
    "base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2,
    "temperal_downsample": [False, True, True], "is_residual": True, "in_channels": 12, "out_channels": 12,
    "patch_size": 2, "scale_factor_temporal": 4, "scale_factor_spatial": 16,
    "latents_mean": [0.0] * 48, "latents_std": [1.0] * 48,
}  # fmt: skip


def random_components(tokenizer_path: Path, device: torch.device, *, tiny: bool, seed: int = 0) -> Components:
    """Transformer and autoencoder with random weights; `tiny` makes them small, for a dry run on a CPU."""
    from diffusers import AutoencoderKLWan, Cosmos3OmniTransformer
    from transformers import AutoTokenizer

    torch.manual_seed(seed)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            transformer = Cosmos3OmniTransformer(**(tiny_recipe.transformer_config() if tiny else NANO))
            vae = AutoencoderKLWan(**(tiny_recipe.vae_config() if tiny else WAN_2_2))
    finally:
        torch.set_default_dtype(before)
    with torch.no_grad():
        for name, tensor in transformer.named_parameters():
            if tensor.ndim > 1:
                tensor.normal_(std=0.02)
            elif name.endswith("bias") or "modality_embed" in name:
                tensor.zero_()
            else:
                tensor.fill_(1.0)
    transformer.time_embedder.float()  # as diffusers keeps it when it loads a checkpoint
    for module in (transformer, vae):
        module.eval().requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_path / "text_tokenizer"), local_files_only=True)
    return Components(transformer, vae, tokenizer, device, dtype)


def make_engine(parts: Components, root: Path, path: Path, max_num_seqs: int) -> DiffusersEngine:
    """The service's engine around components that come from no file."""
    checkpoint = Checkpoint(path, "random-weights-of-full-size", "none", "none", "random")
    with patch.object(engine_module, "load_components", lambda _path, _device: parts):
        return DiffusersEngine(
            checkpoint, output_root=root, guardrails=None, device=parts.device.type, max_num_seqs=max_num_seqs
        )


def make_jobs(root: Path, count: int, request_id: str, fields: dict[str, Any]) -> list[EngineJob]:
    """`count` samples of one shape; prompts of slightly different length, as traffic has them."""
    profile = diffusers_profile(diffusers_version())
    jobs = []
    for i in range(count):
        prompt = " ".join([PROMPT, *EXTRA[: i + 1]])
        sample = resolve_sample(SampleOverrides(name=f"s{i}", prompt=prompt, **fields), profile, seed=i)
        directory = root / request_id / f"s{i}"
        args = {**sample.model_dump(mode="json"), "name": f"s{i}", "output_dir": str(directory)}
        jobs.append(EngineJob(request_id=request_id, name=f"s{i}", output_dir=str(directory), args=args))
    return jobs


def counts(parts: Components) -> dict[str, float]:
    """Parameters in billions: the whole transformer, what one step reads of it, and the autoencoder."""
    generation = ("_moe_gen", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "norm_added", "proj_in.")
    named = [(name, p.numel()) for name, p in parts.transformer.named_parameters()]
    step = sum(n for name, n in named if any(part in name for part in generation) and not name.startswith("action"))
    return {
        "transformer": sum(n for _, n in named) / 1e9,
        "read_per_step": step / 1e9,
        "vae": sum(p.numel() for p in parts.vae.parameters()) / 1e9,
    }


EXTRA = ("with soft light", "at night", "near the gate", "in the rain", "from above", "very slowly", "twice", "again")
PROMPT = (
    "A robot arm lifts a red cube and lowers it onto a blue plate beside a green bottle. A small wheeled robot carries"
    " boxes along a warehouse aisle between high shelves while a worker in a yellow vest watches. A delivery van turns"
    " left at a wet crossing at night; lamps and windows shine on the road. A forklift raises a pallet, backs away"
    " slowly and sets it down near the gate. Close view with soft light, natural colours, sharp details and steady"
    " motion. Wide view from above, long shadows, clear sky. The camera follows the object, then stays still; the"
    " background does not change. Water runs from a tap into a steel bowl until it is nearly full. A hand pulls out a"
    " drawer, takes a spoon from it and pushes it shut again. Waves roll over dark rocks on a cloudy day."
)
