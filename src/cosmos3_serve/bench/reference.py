"""Tables that others measured, to set a prediction against. Never mixed with results of this package.

Source: NVIDIA Dynamo's recipe for the Cosmos3 Nano Reasoner (the seed document): eight H200, one FP8 worker each, 200
videos of 30 s at 2 fps, 20 questions each, 128 output tokens, 4,000 requests a row, single runs.
"""

from __future__ import annotations

from dataclasses import dataclass

WORKERS, VIDEOS, QUESTIONS, OUTPUT_TOKENS = 8, 200, 20, 128


@dataclass(frozen=True, slots=True)
class ReferenceRow:
    concurrency: int
    round_robin: float
    affinity: float
    round_robin_ttft_p50_ms: float
    affinity_ttft_p50_ms: float


ROWS = (
    ReferenceRow(1, 1.91, 2.60, 61, 58),
    ReferenceRow(2, 3.90, 5.46, 61, 58),
    ReferenceRow(4, 7.71, 10.86, 61, 57),
    ReferenceRow(8, 14.38, 21.44, 90, 58),
    ReferenceRow(16, 21.39, 37.68, 303, 62),
)
