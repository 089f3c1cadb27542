"""Training steps as CUDA graphs: each layout of inputs is recorded once and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class Recorder:
    """Loss and gradients of a batch. Gradients land in `.grad` of the parameters, the same tensors in every step.

    Args:
        loss: from inputs and `variant` (a constant of the recording) to the loss; it draws no random numbers.
    """

    def __init__(self, loss: Callable[[list[Tensor], Any], Tensor], learned: Iterable[torch.nn.Parameter]) -> None:
        self.loss, self.learned = loss, list(learned)
        self.grads = [torch.zeros_like(p) for p in self.learned]
        for p, g in zip(self.learned, self.grads, strict=True):
            p.grad = g
        self.graphs: dict[Any, tuple[Any, list[Tensor], Tensor]] = {}
        self.recording = torch.cuda.is_available()

    def plain(self, inputs: list[Tensor], variant: Any) -> Tensor:
        loss = self.loss(inputs, variant)
        found = torch.autograd.grad(loss, self.learned, allow_unused=True)
        missing = [own for own, new in zip(self.grads, found, strict=True) if new is None]
        if missing:
            torch._foreach_zero_(missing)
        pairs = [(own, new) for own, new in zip(self.grads, found, strict=True) if new is not None]
        torch._foreach_copy_([own for own, _ in pairs], [new for _, new in pairs])
        return loss.detach()

    def step(self, inputs: list[Tensor], variant: Any = None) -> Tensor:
        if not self.recording:
            return self.plain(inputs, variant)
        key = (variant, *((tuple(t.shape), t.dtype) for t in inputs))
        if key not in self.graphs:
            self.graphs[key] = self._record([t.clone() for t in inputs], variant)
        graph, held, loss = self.graphs[key]
        torch._foreach_copy_(held, inputs)
        graph.replay()
        return loss

    def _record(self, held: list[Tensor], variant: Any) -> tuple[Any, list[Tensor], Tensor]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                wanted = self.plain(held, variant).clone()
            grads = [g.clone() for g in self.grads]
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self.plain(held, variant)
        graph.replay()
        gap = torch.sqrt(sum((a - b).square().sum() for a, b in zip(grads, self.grads, strict=True)))
        size = torch.sqrt(sum(a.square().sum() for a in grads))
        if not float((loss - wanted).abs()) < 1e-2 * float(wanted.abs()) or not float(gap) < 0.05 * float(size):
            raise RuntimeError(f"a recorded step differs: loss {loss} and {wanted}, gradients {gap} of {size}")
        return graph, held, loss
