"""Attention within one strand, and rotary embedding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True)
class Controls:
    """Control media at the head of a strand's rows: their lengths in order, and their weights, which sum to 1."""

    lengths: tuple[int, ...]
    weights: tuple[float, ...]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of `x` [n, heads, dim] by `cos`, `sin` [n, 1, dim]."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False) -> torch.Tensor:
    """q [n, heads, dim] over k, v [m, kv_heads, dim]; gives [n, heads * dim]."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    return out.squeeze(0).transpose(0, 1).flatten(-2)


def attend_strand(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    text: tuple[torch.Tensor, torch.Tensor],
    controls: Controls | None,
) -> torch.Tensor:
    """Rows of one strand over its text and its rows.

    With several controls, each control and the target see the text, that control and the target only, and the target
    takes the weighted mean of what it saw beside each (source: the framework's multi-control attention; with one
    control this is plain full attention).
    """
    text_k, text_v = text
    if controls is None or len(controls.lengths) < 2:
        return attend(q, torch.cat([text_k, k]), torch.cat([text_v, v]))
    count = len(controls.lengths)
    rest = q.shape[0] - sum(controls.lengths)
    q_parts, k_parts, v_parts = (x.split([*controls.lengths, rest]) for x in (q, k, v))
    out: list[torch.Tensor] = []
    target: torch.Tensor | None = None
    for i in range(count):
        keys = torch.cat([text_k, k_parts[i], k_parts[-1]])
        values = torch.cat([text_v, v_parts[i], v_parts[-1]])
        out.append(attend(q_parts[i], keys, values))
        seen = attend(q_parts[-1], keys, values) * controls.weights[i]
        target = seen if target is None else target + seen
    assert target is not None
    return torch.cat([*out, target])
