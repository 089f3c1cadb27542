"""When frames are shown: their rate, whether it is even, and where it starts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

DRIFT_S = 0.25
DEFAULT_RATE = 25.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """
    Args:
        times_s: when each shown frame is shown, sorted, the first at 0.
        start_s: when that is, after the earliest stream of the file begins.
        fps: mean rate.
        even: intervals differ by no more than a tenth.
    """

    times_s: tuple[float, ...]
    start_s: float
    fps: float
    even: bool


def timeline(
    stamps_s: Sequence[float], origin_s: float, header_rate: float | None, *, drift_s: float = DRIFT_S
) -> Timeline:
    """
    Args:
        stamps_s: presentation times of the shown frames, in any order, at least one.
        origin_s: when the earliest stream begins, on the same clock.
        header_rate: frames per second as declared.
    """
    stamps = sorted(stamps_s)
    times = tuple(stamp - stamps[0] for stamp in stamps)
    fps, even = frame_rate(times, header_rate, drift_s)
    return Timeline(times, max(0.0, stamps[0] - origin_s), fps, even)


def frame_rate(times_s: Sequence[float], header_rate: float | None, drift_s: float = DRIFT_S) -> tuple[float, bool]:
    """Frames per second, and whether they come evenly: the header's rate unless the frames' own times contradict it."""
    if len(times_s) < 2 or times_s[-1] <= 0:
        return header_rate or DEFAULT_RATE, len(times_s) < 2
    gaps = [after - before for before, after in pairwise(times_s)]
    usual = statistics.median(gaps)
    even = all(abs(gap - usual) <= max(0.1 * usual, 0.0015) for gap in gaps)  # containers round to milliseconds
    if header_rate and drift(times_s, header_rate) <= drift_s:
        return header_rate, even
    return len(gaps) / times_s[-1], even


def drift(times_s: Sequence[float], fps: float) -> float:
    """How far, at worst, a frame's time is from index / fps, in seconds."""
    return max(abs(time - index / fps) for index, time in enumerate(times_s))
