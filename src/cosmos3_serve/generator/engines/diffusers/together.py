"""Which samples of a step share the matrix products, and on a CPU the proof that sharing leaves their bytes alone.

How a product rounds may depend on how many rows it has: the library picks a kernel by the shape, not by the values. So
on a CPU samples of the same layout (the rows of each of their strands) go together, and the first step of each layout
and count runs twice, together and sample by sample. Only what is equal to the bit then goes together from there on.
With more than one thread nothing does, and samples of different layouts never: a mixed wave that was packed on the
strength of its first step did not have the same bits with 1, 2 and 3 threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from cosmos3_serve.generator.engines.diffusers.network import Network, Strand

log = logging.getLogger(__name__)

Forward = Callable[[Sequence[Strand]], list[torch.Tensor]]
Strands = Sequence[Sequence[Strand]]  # those of each sample
Rows = list[list[torch.Tensor]]
Layout = tuple[int, ...]  # rows of each strand
MAX_KINDS = 1024


def together(forward: Forward, strands: Strands) -> Rows:
    """All samples as one block."""
    rows = iter(forward([strand for own in strands for strand in own]))
    return [[next(rows) for _ in own] for own in strands]


def apart(forward: Forward, strands: Strands) -> Rows:
    """Each sample a block of its own."""
    return [forward(own) for own in strands]


class Proven:
    """Together where that was seen to change no bit; see the module. For one thread at a time."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._same: dict[tuple[Layout, int], bool] = {}

    def forward(self, strands: Strands) -> Rows:
        """Each sample's rows, the same bits as of the sample alone."""
        groups: dict[Layout, list[int]] = {}
        for index, own in enumerate(strands):
            groups.setdefault(tuple(strand.rows.shape[0] for strand in own), []).append(index)
        rows: dict[int, list[torch.Tensor]] = {}
        for layout, members in groups.items():
            rows.update(zip(members, self._group(layout, [strands[index] for index in members]), strict=True))
        return [rows[index] for index in range(len(strands))]

    def _group(self, layout: Layout, strands: Strands) -> Rows:
        forward = self._network.forward
        if len(strands) == 1 or torch.get_num_threads() > 1:
            return apart(forward, strands)
        kind = layout, len(strands)
        if kind in self._same:
            return (together if self._same[kind] else apart)(forward, strands)
        alone, packed = apart(forward, strands), together(forward, strands)
        pairs = [pair for own, other in zip(alone, packed, strict=True) for pair in zip(own, other, strict=True)]
        self._same[kind] = all(torch.equal(a, b) for a, b in pairs)
        if not self._same[kind]:
            log.warning("%d samples would round differently together on this CPU; they go one by one", len(strands))
        if len(self._same) > MAX_KINDS:
            del self._same[next(iter(self._same))]
        return alone
