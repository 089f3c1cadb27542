"""The state of the queue, for readiness and metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The queue at one moment. Seconds; `last_wave_age_s` is None before the first wave; `ready` once an engine
    answered; `disk_trouble` says why the ledger can't be written."""

    depth: int
    oldest_age_s: float
    running: int
    waves_started: int
    last_wave_age_s: float | None
    stalled: bool
    ready: bool
    disk_trouble: str | None
