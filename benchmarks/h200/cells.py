"""Cells of the table: a mix at a number of requests in flight, checked against the engines' own counts, and summed up.

A cell with videos is refused (`InvalidRun`) when an answer failed or has another number of tokens, when the engines
counted other answers or tokens than the client, and when cold and warm questions are not what the mix says: by the
cached tokens of each answer, and by the misses of the engines' own multimodal cache. The text cell only ranks variants:
of it `served` demands whole answers of the right length, and no counts.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any

from load import Answer
from measure.result import demand, quantile

COLD_SHARE, WARM_SHARE = 0.1, 0.9  # of the prompt from the prefix cache: at most, at least
PHASES = {
    "queue": "vllm:request_queue_time_seconds",
    "prefill": "vllm:request_prefill_time_seconds",
    "decode": "vllm:request_decode_time_seconds",
}
_LINE = re.compile(r"(vllm:\w+)(?:\{[^}]*\})? (\S+)")


def counts(exposition: str) -> Counter[str]:
    """A metrics page as sums over labels; buckets are left out."""
    found: Counter[str] = Counter()
    for line in exposition.splitlines():
        if (said := _LINE.fullmatch(line)) and not said[1].endswith(("_bucket", "_created")):
            value = float(said[2])
            if math.isfinite(value):
                found[said[1]] += value  # type: ignore[assignment]
    return found


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: after[name] - before.get(name, 0.0) for name in after}


def check(where: str, answers: Sequence[Answer], engine: Mapping[str, float], *, cold: int, tokens: int) -> None:
    """
    Args:
        engine: what the engines' counters grew by, all engines together.
        cold: first questions about a video in this cell.

    Raises:
        InvalidRun: the cell is not what its figures would claim.
    """
    count = len(answers)
    failed = [a.problem for a in answers if a.problem]
    demand(not failed, f"{where}: {len(failed)} of {count} failed, first: {failed[:1]}")
    wrong = [a.tokens for a in answers if a.tokens != tokens]
    demand(not wrong, f"{where}: {len(wrong)} answers of {wrong[:3]} tokens, not {tokens}")
    firsts = [a for a in answers if a.turn == 0]
    demand(len(firsts) == cold, f"{where}: {len(firsts)} first questions, not {cold}")
    lukewarm = [round(a.cached / a.prompt, 2) for a in firsts if a.cached > COLD_SHARE * a.prompt]
    demand(not lukewarm, f"{where}: first questions found their prompt in the prefix cache: {lukewarm[:3]}")
    chilled = [round(a.cached / a.prompt, 2) for a in answers if a.turn > 0 and a.cached < WARM_SHARE * a.prompt]
    demand(not chilled, f"{where}: later questions found too little in the prefix cache: {chilled[:3]}")
    done = engine.get("vllm:request_success_total", 0)
    demand(done == count, f"{where}: {count} answers, but the engines counted {done:g}")
    made = engine.get("vllm:generation_tokens_total", 0)
    demand(made == count * tokens, f"{where}: the engines made {made:g} tokens, not {count * tokens}")
    missed = engine.get("vllm:mm_cache_queries_total", 0) - engine.get("vllm:mm_cache_hits_total", 0)
    demand(missed == cold, f"{where}: the engines processed {missed:g} videos, not {cold}")


def summary(answers: Sequence[Answer], wall_s: float, engine: Mapping[str, float], *, gpus: int) -> dict[str, Any]:
    """Figures of a valid cell, in milliseconds. `front`: what of the first token is neither queue nor prefill."""
    count = len(answers)
    found: dict[str, Any] = {
        "requests": count,
        "seconds": round(wall_s, 3),
        "req_s": round(count / wall_s, 3),
        "req_s_per_gpu": round(count / wall_s / gpus, 3),
        "prompt_tokens": median(a.prompt for a in answers),
        "itl_p50": _ms(median(a.itl_s for a in answers)),
    }
    for name, chosen in (("", list(answers)), ("warm_", [a for a in answers if a.turn > 0]),
                         ("cold_", [a for a in answers if a.turn == 0])):  # fmt: skip
        if chosen:
            found[f"{name}ttft_p50"] = _ms(quantile([a.ttft_s for a in chosen], 0.5))
            found[f"{name}ttft_p95"] = _ms(quantile([a.ttft_s for a in chosen], 0.95))
            found[f"{name}latency_p50"] = _ms(quantile([a.total_s for a in chosen], 0.5))
            found[f"{name}latency_p95"] = _ms(quantile([a.total_s for a in chosen], 0.95))
            found[f"{name}itl_p50"] = _ms(median(a.itl_s for a in chosen))
    for phase, metric in PHASES.items():
        times = engine.get(f"{metric}_count", 0)
        if times:
            found[f"{phase}_mean"] = _ms(engine[f"{metric}_sum"] / times)
    ttft = _ms(mean(a.ttft_s for a in answers))
    if "queue_mean" in found and "prefill_mean" in found:
        found["front_mean"] = round(ttft - found["queue_mean"] - found["prefill_mean"], 2)
    found["ttft_mean"] = ttft
    return found


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)
