"""Answers: who was in one batch of upstream's, told by when the answers came.

Upstream does not say how it coalesced. It runs one batch at a time and answers all of its samples at once, so calls
whose answers come together were together, and a later batch of the same turn answers at least an inference later.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from uuid import uuid4

from cosmos3_serve.generator.engines.framework.turns import Turn
from cosmos3_serve.generator.engines.job import WaveRecord

TOGETHER_S = 0.2  # far below any inference, far above a loaded loop's delay between two answers


@dataclass(slots=True, eq=False)
class _Batch:
    turn: Turn
    id: str = field(default_factory=lambda: uuid4().hex[:12])
    seats: list[int] = field(default_factory=list)
    closed: asyncio.Event = field(default_factory=asyncio.Event)


class Answers:
    """One turn at a time has answers coming; `Turns` sees to it."""

    def __init__(self) -> None:
        self._open: _Batch | None = None

    async def wave(self, turn: Turn, seat: int) -> WaveRecord:
        """The record of a call that was just answered. Waits a moment for the rest of its batch, if any."""
        batch = self._open
        if batch is None or batch.turn is not turn:
            batch = self._open = _Batch(turn)
            asyncio.get_running_loop().call_later(TOGETHER_S, self._close, batch)
        batch.seats.append(seat)
        if len(batch.seats) == turn.inside:
            self._close(batch)
        await batch.closed.wait()
        seats = sorted(batch.seats)
        return WaveRecord(
            coalesced_id=batch.id,
            coalesced=len(seats),
            inference_id=batch.id,
            inference_batch=len(seats),
            slot=seats.index(seat),
            mixed_shapes=len({turn.shapes[other] for other in seats}) > 1,
        )

    def _close(self, batch: _Batch) -> None:
        batch.closed.set()
        if self._open is batch:
            self._open = None
