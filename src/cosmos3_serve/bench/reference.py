"""Figures that NVIDIA published, to set a prediction against. Never mixed with results of this package.

Source: NVIDIA Dynamo's recipe for the Cosmos3 Nano Reasoner: eight H200, one FP8 worker each, 200 videos of 30 s at
2 fps, 20 questions each, 128 output tokens, 4,000 requests a row without an error, single runs of AIPerf.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

WORKERS, VIDEOS, QUESTIONS, OUTPUT_TOKENS = 8, 200, 20, 128
ORIGIN = "measured by NVIDIA, not by this project"


@dataclass(frozen=True, slots=True)
class ReferenceRow:
    """Requests per second and milliseconds; what was published for some rows alone is None elsewhere."""

    concurrency: int
    round_robin: float
    affinity: float
    round_robin_ttft_p50_ms: float
    affinity_ttft_p50_ms: float
    round_robin_ttft_p95_ms: float | None = None
    affinity_ttft_p95_ms: float | None = None
    round_robin_latency_p50_ms: float | None = None
    affinity_latency_p50_ms: float | None = None
    round_robin_tokens_per_s: float | None = None
    affinity_tokens_per_s: float | None = None


ROWS = (
    ReferenceRow(1, 1.91, 2.60, 61, 58),
    ReferenceRow(2, 3.90, 5.46, 61, 58),
    ReferenceRow(4, 7.71, 10.86, 61, 57),
    ReferenceRow(8, 14.38, 21.44, 90, 58),
    ReferenceRow(16, 21.39, 37.68, 303, 62, 760, 134, 674, 409, 2738, 4822),
)


def table() -> Iterator[str]:
    """Every published figure as one Markdown table: round robin, then affinity."""
    pairs = ("req/s", "TTFT p50 ms", "TTFT p95 ms", "latency p50 ms", "output tokens/s")
    yield f"| concurrency | {' | '.join(pairs)} | throughput gain |"
    yield "| ---: |" + " ---: |" * (len(pairs) + 1)
    for row in ROWS:
        cells = [
            f"{row.round_robin:.2f} → {row.affinity:.2f}",
            _pair(row.round_robin_ttft_p50_ms, row.affinity_ttft_p50_ms),
            _pair(row.round_robin_ttft_p95_ms, row.affinity_ttft_p95_ms),
            _pair(row.round_robin_latency_p50_ms, row.affinity_latency_p50_ms),
            _pair(row.round_robin_tokens_per_s, row.affinity_tokens_per_s),
        ]
        yield f"| {row.concurrency} | {' | '.join(cells)} | {row.affinity / row.round_robin - 1:+.0%} |"


def _pair(robin: float | None, affinity: float | None) -> str:
    return "" if robin is None or affinity is None else f"{robin:,.0f} → {affinity:,.0f}"
