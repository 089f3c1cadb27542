"""The transformer's forward, split where its two streams split.

Cosmos3 runs two towers side by side: text tokens see text only and never change from step to step, vision and action
tokens see text and themselves. So the text tower runs once per prompt and leaves its keys and values (`prefill`), and a
step runs the generation tower alone (`forward`). Only stock submodules are called (on CUDA with their norms
fused); a test holds the sum equal to the stock forward.

A strand is the rows of one sample under one prompt. Strands in one block go through every matrix product together;
attention is per strand always. What a block holds decides speed and bytes, see `wave.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cosmos3_serve.generator.engines.diffusers.attend import Controls, attend, attend_strand, rotate
from cosmos3_serve.generator.engines.diffusers.positions import Positions


@dataclass(frozen=True)
class Prefix:
    """Keys and values [n, kv_heads, dim] that a prompt leaves behind, one pair per layer."""

    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    length: int


@dataclass(frozen=True)
class Place:
    """Rotary cosine and sine [n, 1, dim] of a strand's rows."""

    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True)
class Strand:
    """Embedded rows [n, hidden] of one sample, the prompt and the place they are seen under."""

    rows: torch.Tensor
    place: Place
    prefix: Prefix
    controls: Controls | None = None


class Network:
    def __init__(self, transformer: Any, device: torch.device, temporal: int) -> None:
        self._net = transformer
        self._device = device
        self.dtype: torch.dtype = transformer.embed_tokens.weight.dtype
        self.positions = Positions(transformer.config, temporal)
        self.patch = int(transformer.config.latent_patch_size)
        self.channels = int(transformer.config.latent_channel)
        self.action_dim = int(transformer.config.action_dim or 0)
        self.domains = int(transformer.config.num_embodiment_domains) if transformer.config.action_gen else 0

    # ---- text -------------------------------------------------------------------------------------------------------

    def prefill(self, ids: Sequence[int]) -> Prefix:
        """Run the text tower over a prompt. Alone, so that the result never depends on other prompts."""
        tokens = torch.tensor(list(ids), dtype=torch.long, device=self._device)
        place = self.place(self.positions.text(len(ids)))
        hidden = self._net.embed_tokens(tokens)
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        for layer in self._net.layers:
            attn = layer.self_attn
            x = normed(layer.input_layernorm, hidden)
            q = normed(attn.norm_q, _heads(attn.to_q(x), attn.head_dim))
            k = normed(attn.norm_k, _heads(attn.to_k(x), attn.head_dim))
            v = _heads(attn.to_v(x), attn.head_dim)
            seen = k if attn.k_norm_und_for_gen is None else normed(attn.k_norm_und_for_gen, k)
            kept.append((rotate(seen, place.cos, place.sin), v))
            if len(kept) == len(self._net.layers):
                break  # nothing reads the text rows behind the last layer
            out = attend(rotate(q, place.cos, place.sin), rotate(k, place.cos, place.sin), v, causal=True)
            hidden = hidden + attn.to_out(out)
            hidden = hidden + layer.mlp(normed(layer.post_attention_layernorm, hidden))
        return Prefix(tuple(kept), len(ids))

    def place(self, positions: torch.Tensor) -> Place:
        """Rotary embedding of positions [3, n]."""
        cos, sin = self._net.rotary_emb(
            position_ids=positions.to(self._device).unsqueeze(1), device=self._device, dtype=self.dtype
        )
        return Place(cos.squeeze(0).unsqueeze(1), sin.squeeze(0).unsqueeze(1))

    # ---- rows in ----------------------------------------------------------------------------------------------------

    def grid(self, latents: torch.Tensor) -> tuple[int, int, int]:
        """(T, H, W) in patches of latents [1, C, T, h, w]."""
        _, _, t, h, w = latents.shape
        return t, -(-h // self.patch), -(-w // self.patch)

    def embed_vision(self, latents: torch.Tensor, noisy: torch.Tensor, timestep: int) -> torch.Tensor:
        """Rows [T*H*W, hidden] of latents [1, C, T, h, w]; frames in the mask `noisy` [T] carry the timestep."""
        t, h, w = self.grid(latents)
        p = self.patch
        x = latents.to(self.dtype)[0]
        pad = (0, w * p - x.shape[-1], 0, h * p - x.shape[-2])
        if any(pad):
            x = torch.nn.functional.pad(x, pad)
        patches = x.reshape(self.channels, t, h, p, w, p).permute(1, 2, 4, 3, 5, 0).reshape(t, h * w, -1)
        rows = self._net.proj_in(patches.reshape(t * h * w, -1)).view(t, h * w, -1)
        return _add_where(rows, noisy, self._time(timestep)).flatten(0, 1)

    def embed_action(
        self, actions: torch.Tensor, noisy: torch.Tensor, timestep: int, domain: torch.Tensor
    ) -> torch.Tensor:
        """Rows [T, hidden] of actions [T, action_dim]; `domain` [1] picks the embodiment's projection."""
        rows = self._net.action_proj_in(actions.to(self.dtype).unsqueeze(0), domain).squeeze(0)
        rows = rows + self._net.action_modality_embed
        return _add_where(rows.unsqueeze(1), noisy, self._time(timestep)).flatten(0, 1)

    def _time(self, timestep: int) -> torch.Tensor:
        """Embedding [1, hidden] of a timestep."""
        scaled = torch.tensor([timestep], device=self._device) * self._net.config.timestep_scale
        embedder = self._net.time_embedder
        projected = self._net.time_proj(scaled).to(next(embedder.parameters()).dtype)
        embedded: torch.Tensor = embedder(projected)
        return embedded.to(self.dtype)

    # ---- the generation tower ---------------------------------------------------------------------------------------

    def forward(self, block: Sequence[Strand]) -> list[torch.Tensor]:
        """Run the strands of one block through all layers; gives each strand's rows [n, hidden]."""
        lengths = [strand.rows.shape[0] for strand in block]
        hidden = torch.cat([strand.rows for strand in block])
        cos = torch.cat([strand.place.cos for strand in block])
        sin = torch.cat([strand.place.sin for strand in block])
        for index, layer in enumerate(self._net.layers):
            attn = layer.self_attn
            x = normed(layer.input_layernorm_moe_gen, hidden)
            q = rotate(normed(attn.norm_added_q, _heads(attn.add_q_proj(x), attn.head_dim)), cos, sin).split(lengths)
            k = rotate(normed(attn.norm_added_k, _heads(attn.add_k_proj(x), attn.head_dim)), cos, sin).split(lengths)
            v = _heads(attn.add_v_proj(x), attn.head_dim).split(lengths)
            out = torch.cat(
                [
                    attend_strand(q[i], k[i], v[i], strand.prefix.layers[index], strand.controls)
                    for i, strand in enumerate(block)
                ]
            )
            hidden = hidden + attn.to_add_out(out)
            hidden = hidden + layer.mlp_moe_gen(normed(layer.post_attention_layernorm_moe_gen, hidden))
        return list(normed(self._net.norm_moe_gen, hidden).split(lengths))

    # ---- rows out ---------------------------------------------------------------------------------------------------

    def vision_velocity(self, rows: torch.Tensor, latents: torch.Tensor, noisy: torch.Tensor) -> torch.Tensor:
        """Velocity [1, C, T, h, w] float32 from a vision item's rows; zero on frames that are not noisy."""
        t, h, w = self.grid(latents)
        p = self.patch
        velocity = torch.zeros(latents.shape, device=self._device, dtype=torch.float32)
        chosen = rows.view(t, h * w, -1)[noisy]
        if chosen.shape[0]:
            patches = self._net.proj_out(chosen.flatten(0, 1)).view(-1, h, w, p, p, self.channels)
            full = patches.permute(5, 0, 1, 3, 2, 4).reshape(self.channels, -1, h * p, w * p)
            velocity[0, :, noisy] = full[..., : latents.shape[-2], : latents.shape[-1]].float()
        return velocity

    def action_velocity(self, rows: torch.Tensor, noisy: torch.Tensor, domain: torch.Tensor) -> torch.Tensor:
        """Velocity [T, action_dim] float32 from action rows; zero on steps that are not noisy."""
        velocity = torch.zeros((rows.shape[0], self.action_dim), device=self._device, dtype=torch.float32)
        if bool(noisy.any()):
            velocity[noisy] = self._net.action_proj_out(rows[noisy].unsqueeze(0), domain).squeeze(0).float()
        return velocity


def normed(norm: Any, x: torch.Tensor) -> torch.Tensor:
    """RMS norm over the last side of `x`. On CUDA in one kernel instead of the module's six, which were a sixth of a
    step at full size (benchmarks/h200_generator); elsewhere by the module, to keep its bytes."""
    if not x.is_cuda or getattr(norm, "bias", None) is not None:
        out: torch.Tensor = norm(x)
        return out
    return torch.nn.functional.rms_norm(x, tuple(norm.weight.shape), norm.weight, norm.eps)


def _heads(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.view(x.shape[0], -1, dim)


def _add_where(rows: torch.Tensor, mask: torch.Tensor, addend: torch.Tensor) -> torch.Tensor:
    """rows [T, n, hidden] plus addend [1, hidden] on the groups that `mask` [T] marks."""
    return torch.where(mask.view(-1, 1, 1), rows + addend, rows)
