"""A small step as one CUDA graph.

A step launches some three thousand kernels. Where each has little to do, the GPU waits for the next launch: a 256x256
image took 50 ms a step on an H200 whose floor is 3 (benchmarks/h200_generator). So the first step of a wave runs as it
is, the second is recorded, and the rest replay the record: the same kernels on the same numbers, hence the same bytes.

A record holds addresses, so it is good only for the strands it was made of; when they change, it is made anew. Whatever
keeps a step from being recorded costs speed and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch

from cosmos3_serve.generator.engines.diffusers.network import Network, Strand

log = logging.getLogger(__name__)

MAX_ROWS = 2048  # above, kernels outlast their launches (1800 rows gained 4 percent) and the record's memory grows
MIN_FREE_BYTES = 4 * 1024**3  # a record takes a tenth of that; running out of memory while recording is not worth it

Quiet = Callable[[], AbstractContextManager[bool]]


class Replay:
    """`forward` in place of the network's, for one wave.

    Args:
        quiet: keeps other threads from the big users of device memory while a step is recorded; False if one is at it.
    """

    def __init__(self, network: Network, quiet: Quiet) -> None:
        self._network = network
        self._quiet = quiet
        self._refused = False
        self.forget()

    def forget(self) -> None:
        """Give the record's memory back."""
        self._graph: Any = None
        self._strands: list[Strand] = []  # of the last step; kept, so that no other tensor takes over an address
        self._inputs: list[torch.Tensor] = []
        self._outputs: list[torch.Tensor] = []

    def forward(self, block: Sequence[Strand]) -> list[torch.Tensor]:
        """As `Network.forward`; the tensors given back are overwritten by the next call."""
        if self._refused or sum(strand.rows.shape[0] for strand in block) > MAX_ROWS:
            return self._network.forward(block)
        if not self._same(block):
            self.forget()
            self._strands = list(block)
            return self._network.forward(block)
        if self._graph is None and not self._record():
            return self._network.forward(block)
        for kept, strand in zip(self._inputs, block, strict=True):
            kept.copy_(strand.rows)
        self._graph.replay()
        return self._outputs

    def _same(self, block: Sequence[Strand]) -> bool:
        return len(block) == len(self._strands) and all(
            new.rows.shape == old.rows.shape
            and new.prefix is old.prefix
            and new.place is old.place
            and new.controls is old.controls
            for new, old in zip(block, self._strands, strict=True)
        )

    def _record(self) -> bool:
        """Whether there is a record now. Nothing is computed while recording."""
        with self._quiet() as alone:
            if not alone or _free_bytes() < MIN_FREE_BYTES:
                return False
            stream = torch.cuda.current_stream()
            graph = torch.cuda.CUDAGraph()
            inputs = [strand.rows.clone() for strand in self._strands]
            fixed = [Strand(x, s.place, s.prefix, s.controls) for x, s in zip(inputs, self._strands, strict=True)]
            try:
                # Other threads may go on using the device: only this thread's calls are held to a record's rules.
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    outputs = self._network.forward(fixed)
            except Exception as error:
                log.warning("a step could not be recorded; this wave runs without", exc_info=error)
                torch.cuda.set_stream(stream)
                _leave(graph)
                self._refused = True
                self.forget()
                return False
        self._graph, self._inputs, self._outputs = graph, inputs, outputs
        return True


def _free_bytes() -> int:
    """What the device has free, and what torch keeps of it for later and gives back before recording."""
    free: int = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return free


def _leave(graph: Any) -> None:
    """A recording that broke leaves torch's allocator believing that it goes on; nothing public ends it."""
    with suppress(Exception):
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), graph.pool())
