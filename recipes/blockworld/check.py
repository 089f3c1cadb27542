"""The batched forward passes of `towers.py` and `codec.py` against the stock ones, on random weights.

Run on a CPU; seconds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import codec
import layout
import torch
import towers

from cosmos3_serve.weights import tiny_recipe as tiny


def main() -> None:
    torch.manual_seed(0)
    net, vision, vae = layout.new_transformer().float().eval(), layout.new_vision().eval(), layout.new_vae().eval()
    torch.nn.init.normal_(net.action_modality_embed, std=0.3)
    with torch.no_grad():
        for module in (net, vision):
            for p in module.parameters():
                p.mul_(1.5) if p.ndim > 1 else p.add_(torch.randn_like(p) * 0.1)
    _generation(net)
    _codec(vae)
    _reasoner(net, vision, vae)
    print("the batched forward passes equal the stock ones")


@torch.no_grad()
def _codec(vae: Any) -> None:
    for count in (1, 5, 9):
        frames = torch.rand(2, count, 64, 96, 3)
        mean, _ = codec.encode(vae, frames)
        stock = vae.encode(frames.permute(0, 4, 1, 2, 3) * 2 - 1).latent_dist.mean
        gap = (mean - stock).abs().max() / stock.abs().max()
        assert gap < 2e-4, f"encoder differs by {gap:.2e}"
        ours = codec.decode(vae, mean).clamp(0, 1)
        theirs = (vae.decode(mean).sample.permute(0, 2, 3, 4, 1) + 1) / 2
        assert (ours - theirs).abs().max() < 2e-4, "decoder differs"


@torch.no_grad()
def _generation(net: torch.nn.Module) -> None:
    from cosmos3_serve.generator.engines.diffusers.network import Network, Strand

    network = Network(net, torch.device("cpu"), 4)
    lengths = [7, 11]
    ids = torch.randint(0, 700, (2, 12))
    latents = torch.randn(2, 48, 3, 12, 20)
    actions = torch.randn(2, 8, layout.ACTION_DIM)
    sigma, fps = torch.tensor([0.7, 0.25]), torch.tensor([24.0, 10.0])
    prompt = towers.read_prompts(net, ids, torch.tensor(lengths))
    domain = torch.tensor([4])
    for given in (None, actions):
        ours = towers.denoise(net, latents, sigma, 1, prompt, fps, given, 4)
        for b in range(2):
            prefix = network.prefill(ids[b, : lengths[b]].tolist())
            noisy = torch.tensor([False, True, True])
            rows = network.embed_vision(latents[b : b + 1], noisy, int(sigma[b] * 1000))
            origin = network.positions.origin(lengths[b])
            places = [network.positions.vision((3, 6, 10), origin, float(fps[b]))]
            if given is not None:
                still = torch.zeros(8, dtype=torch.bool)
                rows = torch.cat([rows, network.embed_action(given[b], still, int(sigma[b] * 1000), domain)])
                places.append(network.positions.action(8, origin, float(fps[b])))
            hidden = network.forward([Strand(rows, network.place(torch.cat(places, 1)), prefix)])[0]
            theirs = network.vision_velocity(hidden[:180], latents[b : b + 1], noisy)
            gap = (ours[b, :, 1:] - theirs[0, :, 1:]).abs().max() / theirs.abs().max()
            assert gap < 2e-4, f"generation tower differs by {gap:.2e}"


@torch.no_grad()
def _reasoner(net: torch.nn.Module, vision: torch.nn.Module, vae: torch.nn.Module) -> None:
    from transformers import AutoConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel

    frames = torch.rand(2, 4, 192, 320, 3)
    ours, deep = towers.see(vision, frames)
    flat = towers.vision_patches(frames).flatten(0, 2)
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

    stock = Qwen3VLVisionModel(Qwen3VLVisionConfig(**layout.vision_config())).float().eval()
    stock.load_state_dict(vision.state_dict())
    out = stock(flat, torch.tensor([[2, 12, 20]] * 2))
    gap = (ours.flatten(0, 1) - out.pooler_output).abs().max() / out.pooler_output.abs().max()
    assert gap < 2e-4, f"vision encoder differs by {gap:.2e}"
    for mine, theirs in zip(deep, out.deepstack_features, strict=True):
        assert (mine.flatten(0, 1) - theirs).abs().max() / theirs.abs().max() < 2e-4, "deep features differ"
    with tempfile.TemporaryDirectory() as folder:
        import copy

        layout.export(Path(folder) / "x", copy.deepcopy(net), vae, vision, {})
        config = AutoConfig.from_pretrained(str(Path(folder) / "x"))
    text = Qwen3VLTextModel(config.text_config).float().eval()
    names = {
        "to_q": "q_proj",
        "to_k": "k_proj",
        "to_v": "v_proj",
        "to_out": "o_proj",
        "norm_q": "q_norm",
        "norm_k": "k_norm",
    }
    state = {}
    for key, value in net.state_dict().items():
        for old, new in names.items():
            key = key.replace(f"self_attn.{old}.", f"self_attn.{new}.")
        state[key] = value
    missing = text.load_state_dict(state, strict=False).missing_keys
    assert not missing, missing
    embeds = torch.randn(2, 20, layout.HIDDEN)
    positions = torch.randint(0, 30, (3, 2, 20)).sort(-1).values
    extra = [torch.randn(2, 20, layout.HIDDEN) for _ in range(2)]
    mine, _ = towers.understand(net, embeds, positions.float(), extra)
    theirs = text(
        inputs_embeds=embeds, position_ids=positions, visual_pos_masks=torch.ones(2, 20, dtype=torch.bool),
        deepstack_visual_embeds=[e.flatten(0, 1) for e in extra], use_cache=False,
    ).last_hidden_state  # fmt: skip
    gap = (mine - theirs).abs().max() / theirs.abs().max()
    assert gap < 2e-4, f"understanding tower differs by {gap:.2e}"
    assert tiny.SPECIAL


if __name__ == "__main__":
    main()
