"""Batched forward passes over the stock modules, for training: understanding tower, vision encoder, generation tower.

A service runs one sample's rows at a time; here a batch shares one layout. `check.py` holds the sums equal to the
stock forward passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import layout
import torch
import torch.nn.functional as F
from torch import Tensor

MARGIN = 15_000  # positions between a prompt and what is generated (the transformer's configuration)


def norm(module: Any, x: Tensor) -> Tensor:
    eps = getattr(module, "eps", None) or getattr(module, "variance_epsilon", 1e-6)
    return F.rms_norm(x, tuple(module.weight.shape), module.weight.to(x.dtype), eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, H, L, d]; cos, sin [B or 1, L, d]."""
    one, other = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat((-other, one), -1) * sin[:, None]


def heads(x: Tensor, dim: int) -> Tensor:
    return x.unflatten(-1, (-1, dim)).transpose(1, 2)


def _shared(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with as many heads as the queries."""
    n = q.shape[1] // k.shape[1]
    return k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)


def angles(net: Any, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos, sin [B, L, d] of positions [3, B, L]."""
    cos, sin = net.rotary_emb(position_ids=positions, device=positions.device, dtype=dtype)
    return cos, sin


def und_before(layer: Any, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    attn = layer.self_attn
    y = norm(layer.input_layernorm, x)
    q = rotate(norm(attn.norm_q, heads(attn.to_q(y), attn.head_dim)), cos, sin)
    k = rotate(norm(attn.norm_k, heads(attn.to_k(y), attn.head_dim)), cos, sin)
    v = heads(attn.to_v(y), attn.head_dim)
    return q.to(v.dtype), k.to(v.dtype), v


def und_after(layer: Any, x: Tensor, out: Tensor) -> Tensor:
    x = x + layer.self_attn.to_out(out.transpose(1, 2).flatten(2))
    return x + layer.mlp(norm(layer.post_attention_layernorm, x))


def gen_before(
    layer: Any, x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    attn = layer.self_attn
    y = norm(layer.input_layernorm_moe_gen, x)
    q = rotate(norm(attn.norm_added_q, heads(attn.add_q_proj(y), attn.head_dim)), cos, sin)
    k = rotate(norm(attn.norm_added_k, heads(attn.add_k_proj(y), attn.head_dim)), cos, sin)
    v = heads(attn.add_v_proj(y), attn.head_dim)
    k, v = torch.cat([keys.to(v.dtype), k.to(v.dtype)], 2), torch.cat([values.to(v.dtype), v], 2)
    # Fast attention takes a mask, but not fewer heads of keys than of queries beside it.
    n = q.shape[1] // k.shape[1]
    return q.to(v.dtype), k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)


def gen_after(layer: Any, x: Tensor, out: Tensor) -> Tensor:
    x = x + layer.self_attn.to_add_out(out.transpose(1, 2).flatten(2))
    return x + layer.mlp_moe_gen(norm(layer.post_attention_layernorm_moe_gen, x))


def understand(
    net: Any, embeds: Tensor, positions: Tensor, deep: list[Tensor] | None = None
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Hidden states [B, L, D] after the last norm, and each layer's keys and values [B, kv, L, d].

    Args:
        embeds: [B, L, D], positions [3, B or 1, L].
        deep: added behind the first layers, [B, L, D] each: the vision encoder's deep features at their places.
    """
    cos, sin = angles(net, positions, torch.float32)
    cos, sin = cos.to(embeds.dtype), sin.to(embeds.dtype)
    x, kept = embeds, []
    for index, layer in enumerate(net.layers):
        q, k, v = und_before(layer, x, cos, sin)
        out = F.scaled_dot_product_attention(q, *_shared(q, k, v), is_causal=True)
        x = und_after(layer, x, out)
        kept.append((k, v))
        if deep is not None and index < len(deep):
            x = x + deep[index]
    return norm(net.norm, x), kept


def patches(latents: Tensor, p: int = 2) -> Tensor:
    """[B, C, T, h, w] to rows [B, T*H*W, p*p*C]."""
    b, c, t, h, w = latents.shape
    x = latents.reshape(b, c, t, h // p, p, w // p, p).permute(0, 2, 3, 5, 4, 6, 1)
    return x.reshape(b, t * (h // p) * (w // p), p * p * c)


def unpatch(rows: Tensor, shape: torch.Size, p: int = 2) -> Tensor:
    b, c, t, h, w = shape
    x = rows.reshape(b, t, h // p, w // p, p, p, c).permute(0, 6, 1, 2, 4, 3, 5)
    return x.reshape(b, c, t, h, w)


@dataclass
class Prompt:
    """What a batch of prompts leaves: keys and values by layer, lengths [B]; or one prompt for a whole batch."""

    layers: list[tuple[Tensor, Tensor]]
    lengths: Tensor

    def expand(self, count: int) -> Prompt:
        layers = [(k.expand(count, -1, -1, -1), v.expand(count, -1, -1, -1)) for k, v in self.layers]
        return Prompt(layers, self.lengths.expand(count))

    def take(self, index: Tensor) -> Prompt:
        return Prompt([(k[index], v[index]) for k, v in self.layers], self.lengths[index])


@torch.no_grad()
def read_prompts(net: Any, ids: Tensor, lengths: Tensor) -> Prompt:
    """ids [B, L], padded on the right."""
    positions = torch.arange(ids.shape[1], device=ids.device).float().expand(3, 1, -1)
    _, kept = understand(net, net.embed_tokens(ids), positions)
    return Prompt(kept, lengths)


def denoise(
    net: Any, latents: Tensor, sigma: Tensor, clean: int, prompt: Prompt, fps: Tensor,
    actions: Tensor | None = None, domain: int = 0,
) -> Tensor:  # fmt: skip
    """Velocity [B, C, T, h, w]; the first `clean` latent frames are given and carry no timestep.

    Args:
        latents: [B, C, T, h, w]; sigma: [B], 0..1; fps: [B].
        actions: [B, n, action_dim], given.
    """
    b, _, t, h, w = latents.shape
    grid_h, grid_w = h // 2, w // 2
    rows = net.proj_in(patches(latents)).unflatten(1, (t, grid_h * grid_w))
    # The stock pipeline passes whole timesteps.
    time = net.time_embedder(net.time_proj((sigma * 1000).floor() * net.config.timestep_scale))
    noisy = (torch.arange(t, device=latents.device) >= clean).view(1, t, 1, 1)
    x = (rows + time[:, None, None] * noisy).flatten(1, 2)
    origin = prompt.lengths.float() + MARGIN
    frames = torch.arange(t, device=latents.device).float()
    scale = (net.config.base_fps / fps).view(-1, 1)  # latent frames a frame of 24 fps
    when = origin[:, None] + (frames[None] * scale if t > 1 else 0 * frames[None])
    place_t = when[:, :, None, None].expand(b, t, grid_h, grid_w).flatten(1)
    ys = (
        torch.arange(grid_h, device=latents.device).float()[None, None, :, None].expand(b, t, grid_h, grid_w).flatten(1)
    )
    xs = (
        torch.arange(grid_w, device=latents.device).float()[None, None, None, :].expand(b, t, grid_h, grid_w).flatten(1)
    )
    positions = torch.stack([place_t, ys, xs])
    if actions is not None:
        n = actions.shape[1]
        weight = net.action_proj_in.fc.weight[domain].view(actions.shape[2], -1)
        acts = actions @ weight + net.action_proj_in.bias.weight[domain] + net.action_modality_embed
        x = torch.cat([x, acts.to(x.dtype)], 1)
        step = torch.arange(1, n + 1, device=latents.device).float()[None] * scale / 4 + origin[:, None]
        positions = torch.cat([positions, torch.stack([step, 0 * step, 0 * step])], 2)
    cos, sin = angles(net, positions, torch.float32)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    length = prompt.layers[0][0].shape[2]
    seen = torch.arange(length, device=latents.device)[None] < prompt.lengths[:, None]
    mask = torch.cat([seen, seen.new_ones(b, x.shape[1])], 1)[:, None, None].expand(-1, -1, x.shape[1], -1)
    for layer, (k, v) in zip(net.layers, prompt.layers, strict=True):
        q, own_k, own_v = gen_before(layer, x, cos, sin, k, v)
        out = F.scaled_dot_product_attention(q, own_k, own_v, attn_mask=mask)
        x = gen_after(layer, x, out)
    rows = net.proj_out(norm(net.norm_moe_gen, x[:, : t * grid_h * grid_w]))
    return unpatch(rows, latents.shape)


# ---- vision ---------------------------------------------------------------------------------------------------------


def vision_patches(frames: Tensor) -> Tensor:
    """[B, F, H, W, 3] in 0..1, F even, to patches [B, F/2, h*w, 1536] in the processor's order (2x2 blocks)."""
    b, f, height, width, _ = frames.shape
    x = frames * 2 - 1
    x = x.view(b, f // 2, 2, height // 32, 2, 16, width // 32, 2, 16, 3)
    x = x.permute(0, 1, 3, 6, 4, 7, 9, 2, 5, 8)  # b, t, gh, gw, mh, mw, c, tp, ph, pw
    return x.reshape(b, f // 2, (height // 16) * (width // 16), 3 * 2 * 16 * 16)


def _places(model: Any, h: int, w: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Learned embedding [h*w, D] resampled to a grid of h x w patches, and rotary cos and sin, in 2x2 block order."""
    side = round(model.pos_embed.num_embeddings**0.5)
    table = model.pos_embed.weight.view(side, side, -1)

    def block(values: Tensor) -> Tensor:
        return values.view(h // 2, 2, w // 2, 2, -1).permute(0, 2, 1, 3, 4).reshape(h * w, -1)

    grid = table.permute(2, 0, 1)[None].float()
    own = F.interpolate(grid, (h, w), mode="bilinear", align_corners=True)[0].permute(1, 2, 0)
    dim = model.pos_embed.embedding_dim // layout.VISION_HEADS
    inv = 1.0 / (10_000.0 ** (torch.arange(0, dim // 2, 2, dtype=torch.float, device=device) / (dim // 2)))
    ys = torch.arange(h, device=device).float()[:, None, None] * inv
    xs = torch.arange(w, device=device).float()[None, :, None] * inv
    both = torch.cat([ys.expand(h, w, -1), xs.expand(h, w, -1)], -1)
    both = block(torch.cat([both, both], -1))
    return block(own), both.cos(), both.sin()


def see(model: Any, frames: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Merged tokens [B, F/2 * h/2 * w/2, D] of frames [B, F, H, W, 3], and the deep features of the same shape."""
    b, f, height, width, _ = frames.shape
    h, w = height // 16, width // 16
    flat = vision_patches(frames).flatten(0, 1)
    proj = model.patch_embed.proj
    x = F.linear(flat, proj.weight.flatten(1), proj.bias)
    own, cos, sin = _places(model, h, w, frames.device)
    x = x + own.to(x.dtype)
    cos, sin = cos[None].to(x.dtype), sin[None].to(x.dtype)
    deep = []
    for index, block in enumerate(model.blocks):
        y = block.norm1(x)
        q, k, v = block.attn.qkv(y).unflatten(-1, (3, layout.VISION_HEADS, -1)).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        out = F.scaled_dot_product_attention(q, k, v)
        x = x + block.attn.proj(out.transpose(1, 2).flatten(2))
        x = x + block.mlp.linear_fc2(F.gelu(block.mlp.linear_fc1(block.norm2(x)), approximate="tanh"))
        if index in layout.DEEPSTACK:
            merger = model.deepstack_merger_list[layout.DEEPSTACK.index(index)]
            deep.append(_merge(merger, x).view(b, f // 2 * h * w // 4, -1))
    return _merge(model.merger, x).view(b, f // 2 * h * w // 4, -1), deep


def _merge(merger: Any, x: Tensor) -> Tensor:
    n, rows, dim = x.shape
    if merger.use_postshuffle_norm:
        y = merger.norm(x.reshape(n, rows // 4, 4 * dim))
    else:
        y = merger.norm(x).reshape(n, rows // 4, 4 * dim)
    return merger.linear_fc2(F.gelu(merger.linear_fc1(y)))
