"""Ways to run the same step faster, tried as patches on a built engine; nothing here is part of the product."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from cosmos3_serve.generator.engines.diffusers import network as network_module
from cosmos3_serve.generator.engines.diffusers.attend import rotate
from cosmos3_serve.generator.engines.diffusers.engine import DiffusersEngine
from cosmos3_serve.generator.engines.diffusers.network import Network, Prefix, Strand, normed

Forward = Callable[[Sequence[Strand]], list[torch.Tensor]]
NAMES = ("no-replay", "module-norm", "neither", "attention-flash", "varlen", "text-cache-off")


@contextmanager
def applied(name: str, engine: DiffusersEngine) -> Iterator[None]:
    """Run the block with the variant `name` ("base" changes nothing)."""
    network: Network = engine._network
    with ExitStack() as stack:
        if name in ("no-replay", "neither", "text-cache-off"):
            stack.enter_context(patch.object(engine, "_replays", False))
        if name in ("module-norm", "neither"):
            stack.enter_context(module_norm())
        if name == "attention-flash":
            stack.enter_context(only_flash())
        if name == "text-cache-off":
            stack.enter_context(_text_again(network))
        if name == "varlen":
            stack.enter_context(patch.object(network, "forward", Varlen(network)))
        yield


@contextmanager
def module_norm() -> Iterator[None]:
    """The transformer's own norm modules, six kernels each."""
    with patch.object(network_module, "normed", lambda norm, x: norm(x)):
        yield


@contextmanager
def only_flash() -> Iterator[None]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        yield


@contextmanager
def _text_again(network: Network) -> Iterator[None]:
    """What a step costs when every prompt goes through the text tower in every step, as in the stock forward."""
    real_prefill, real_forward = network.prefill, network.forward
    known: dict[int, tuple[Prefix, Sequence[int]]] = {}

    def prefill(ids: Sequence[int]) -> Prefix:
        prefix = real_prefill(ids)
        known[id(prefix)] = (prefix, ids)
        return prefix

    def forward(block: Sequence[Strand]) -> list[torch.Tensor]:
        for strand in block:
            real_prefill(known[id(strand.prefix)][1])
        return real_forward(block)

    with patch.object(network, "prefill", prefill), patch.object(network, "forward", forward):
        yield


class Varlen:
    """All strands of a block in one attention call: packed rows and offsets instead of a loop over strands."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._key: tuple[Any, ...] = ()
        self._offsets: tuple[torch.Tensor, torch.Tensor, int, int] | None = None

    def __call__(self, block: Sequence[Strand]) -> list[torch.Tensor]:
        lengths = [strand.rows.shape[0] for strand in block]
        hidden = torch.cat([strand.rows for strand in block])
        cos = torch.cat([strand.place.cos for strand in block])
        sin = torch.cat([strand.place.sin for strand in block])
        at_q, at_k, longest_q, longest_k = self._packing(lengths, block, hidden.device)
        for index, layer in enumerate(self._network._net.layers):
            attn = layer.self_attn
            x = normed(layer.input_layernorm_moe_gen, hidden)
            dim = attn.head_dim
            q = rotate(normed(attn.norm_added_q, attn.add_q_proj(x).view(x.shape[0], -1, dim)), cos, sin)
            k = rotate(normed(attn.norm_added_k, attn.add_k_proj(x).view(x.shape[0], -1, dim)), cos, sin).split(lengths)
            v = attn.add_v_proj(x).view(x.shape[0], -1, dim).split(lengths)
            texts = [strand.prefix.layers[index] for strand in block]
            keys = torch.cat([part for text, own in zip(texts, k, strict=True) for part in (text[0], own)])
            values = torch.cat([part for text, own in zip(texts, v, strict=True) for part in (text[1], own)])
            out = torch.ops.aten._flash_attention_forward(
                q, keys, values, at_q, at_k, longest_q, longest_k, 0.0, False, False
            )[0]
            hidden = hidden + attn.to_add_out(out.flatten(-2))
            hidden = hidden + layer.mlp_moe_gen(normed(layer.post_attention_layernorm_moe_gen, hidden))
        return list(normed(self._network._net.norm_moe_gen, hidden).split(lengths))

    def _packing(
        self, lengths: list[int], block: Sequence[Strand], device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor, int, int]:
        seen = [n + strand.prefix.length for n, strand in zip(lengths, block, strict=True)]
        key = (*lengths, *seen)
        if self._offsets is None or key != self._key:
            at = [
                torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32, device=device)
                for sizes in (lengths, seen)
            ]
            self._key, self._offsets = key, (at[0], at[1], max(lengths), max(seen))
        return self._offsets
