"""Where the time of a wave goes: parts of a step, text, decoding, and kernels."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
import variants

from cosmos3_serve.generator.engines.diffusers.denoising import Denoising
from cosmos3_serve.generator.engines.diffusers.network import Place, Prefix, Strand
from cosmos3_serve.generator.engines.diffusers.replay import Replay


def anatomy(bench: Any, fields: dict[str, Any], batch: int) -> dict[str, float]:
    """Milliseconds per step of the wave: rows in, network, rows out and solver. Waits for the device between them, so
    the parts sum to more than an undisturbed step."""
    spent: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            bench.sync()
            began = time.perf_counter()
            out = real(*args)
            bench.sync()
            spent[name].append(time.perf_counter() - began)
            return out

        return call

    with ExitStack() as stack:
        stack.enter_context(patch.object(Denoising, "strands", timed("rows_in", Denoising.strands)))
        stack.enter_context(patch.object(Denoising, "advance", timed("rows_out_and_solver", Denoising.advance)))
        if bench.device.type == "cuda":
            stack.enter_context(patch.object(Replay, "forward", timed("network", Replay.forward)))
        else:
            stack.enter_context(patch.object(bench.network, "forward", timed("network", bench.network.forward)))
        bench.wave(fields, batch, finish=False)
    per_step = {"rows_in": batch, "rows_out_and_solver": batch, "network": 1}
    return {name: statistics.median(values) * per_step[name] * 1e3 for name, values in spent.items()}


def prefill_times(network: Any, sync: Callable[[], None]) -> dict[str, float]:
    """Milliseconds of one prompt through the text tower, by length in tokens."""
    found = {}
    for length in (16, 64, 300, 600, 3500):
        times = []
        with torch.inference_mode():
            for _ in range(4):
                sync()
                began = time.perf_counter()
                network.prefill([i % 1000 for i in range(length)])
                sync()
                times.append(time.perf_counter() - began)
        found[str(length)] = statistics.median(times[1:]) * 1e3
    return found


def decode_flop(bench: Any, fields: dict[str, Any]) -> float:
    """TFLOP of decoding one sample, counted while it is done."""
    from torch.utils.flop_counter import FlopCounterMode

    [item] = bench.engine.denoise(bench.jobs({**fields, "num_steps": 1}, 1), lambda *_: None, lambda key: False)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        bench.codec.decode(item.latents.latents)
    return counter.get_total_flops() / 1e12


def rounding(bench: Any, fields: dict[str, Any]) -> dict[str, float]:
    """Distance of one forward of the network from the same forward in float32 (weights widened, which is exact).

    Final latents of random weights say nothing here: any rounding grows over the steps until they differ entirely.
    """
    kept: list[Strand] = []
    real = bench.network.forward

    def forward(block: Any) -> Any:
        kept[:] = kept or list(block)
        return real(block)

    with patch.object(bench.network, "forward", forward):
        bench.wave({**fields, "num_steps": 4}, 1, finish=False)
    net, dtype = bench.parts.transformer, bench.parts.dtype
    out: dict[str, torch.Tensor] = {}
    with torch.inference_mode():
        out["fused norm"] = torch.cat(real(kept)).double()
        with variants.module_norm():
            out["module norm"] = torch.cat(real(kept)).double()
        if bench.device.type == "cuda":
            with variants.only_flash():
                out["flash attention"] = torch.cat(real(kept)).double()
        with variants.module_norm():
            net.layers.float(), net.norm_moe_gen.float()
            exact = torch.cat(real([wide(strand) for strand in kept])).double()
            net.layers.to(dtype), net.norm_moe_gen.to(dtype)
    return {name: float((value - exact).norm() / exact.norm()) for name, value in out.items()}


def wide(strand: Strand) -> Strand:
    place = Place(strand.place.cos.float(), strand.place.sin.float())
    layers = tuple((k.float(), v.float()) for k, v in strand.prefix.layers)
    return Strand(strand.rows.float(), place, Prefix(layers, strand.prefix.length), strand.controls)


def profiled(bench: Any, fields: dict[str, Any], batch: int) -> dict[str, Any]:
    """Kernels of a wave of four steps, text included: launches, device time against wall time, the dearest by name."""
    from torch.profiler import ProfilerActivity, profile

    if bench.device.type != "cuda":
        return {}
    jobs = bench.jobs({**fields, "num_steps": 4}, batch)
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
        began = time.perf_counter()
        bench.engine.denoise(jobs, lambda *_: None, lambda key: False)
        bench.sync()
        wall = time.perf_counter() - began
    rows = [
        (event.key, event.self_device_time_total / 1e3, event.count)
        for event in trace.key_averages()
        if event.self_device_time_total > 0 and event.self_cpu_time_total == 0
    ]
    rows.sort(key=lambda row: -row[1])
    total = sum(row[1] for row in rows)
    return {
        "wall_ms_under_profiler": wall * 1e3,
        "device_busy_ms": total,
        "launches": sum(row[2] for row in rows),
        "top": [[name[:110], round(ms, 3), count, round(ms / total, 4)] for name, ms, count in rows[:14]],
    }
