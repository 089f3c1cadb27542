"""What an engine's /metrics say of its work."""

from __future__ import annotations

from typing import NamedTuple

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
# They move with the steps of the engine core, and with nothing else.
STEPS = (
    RUNNING,
    WAITING,
    "vllm:kv_cache_usage_perc",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:iteration_tokens_total_count",
    "vllm:request_success_total",
)


class EngineFigures(NamedTuple):
    """
    Args:
        running, waiting: requests, whoever sent them.
        progress: differs from the one before if the engine has computed something.
    """

    running: int
    waiting: int
    progress: tuple[float, ...]


def parse_figures(exposition: str) -> EngineFigures | None:
    """Sums over all engines of a server; None if it does not say what runs."""
    sums: dict[str, float] = {}
    for line in exposition.splitlines():
        if not line.startswith("vllm:"):
            continue
        name = line.partition("{")[0].partition(" ")[0]  # `…_waiting_by_reason` and the like are other series
        if name in STEPS:
            try:
                sums[name] = sums.get(name, 0.0) + float(line.rpartition(" ")[2])
            except ValueError:
                continue
    if RUNNING not in sums:
        return None
    progress = tuple(sums.get(name, 0.0) for name in STEPS)
    return EngineFigures(int(sums[RUNNING]), int(sums.get(WAITING, 0.0)), progress)
