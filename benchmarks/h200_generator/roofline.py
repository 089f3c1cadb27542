"""The least time a step could take: operations over the measured matrix rate, bytes over the measured bandwidth."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch


def ceilings(device: torch.device) -> dict[str, float]:
    """bf16 matrix rate (TFLOP/s, random data) and copy bandwidth (TB/s, read plus written) of this card, measured."""
    if device.type != "cuda":
        return {"matmul_tflops": 0.05, "copy_tbs": 0.01}
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    matmul = timed(lambda: a @ b, 20)
    source = torch.randn(1 << 30, device=device, dtype=torch.float32)
    target = torch.empty_like(source)
    copy = timed(lambda: target.copy_(source), 10)
    return {"matmul_tflops": 2 * 8192**3 / matmul / 1e12, "copy_tbs": 2 * source.numel() * 4 / copy / 1e12}


def timed(call: Any, repeats: int) -> float:
    """Median seconds of `call` by device events, after three warm-up calls."""
    times = []
    for i in range(repeats + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        if i >= 3:
            times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def step_floor(
    strands: Sequence[tuple[int, int]], config: Any, parameters: float, rates: dict[str, float]
) -> dict[str, float]:
    """Floors of one forward.

    Args:
        strands: (own rows, text rows) of each strand.
        parameters: what a step reads, in billions.
    """
    rows = sum(own for own, _ in strands)
    width = config.num_attention_heads * config.head_dim
    attention = sum(4.0 * own * (own + text) * width for own, text in strands) * config.num_hidden_layers
    tera = (2.0 * parameters * 1e9 * rows + attention) / 1e12
    return {
        "rows": rows,
        "tflop": tera,
        "attention_share": attention / 1e12 / tera,
        "compute_s": tera / rates["matmul_tflops"],
        "weights_s": parameters * 2e9 / 1e12 / rates["copy_tbs"],
    }
