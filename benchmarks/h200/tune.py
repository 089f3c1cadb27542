"""Which plan of `few_rows` is fastest for each product of the model, beside CUTLASS; figures of single kernels.

    python tune.py OUT.json [--pdl]     writes plans for `COSMOS3_FEW_ROWS` and OUT.figures.json

Every timing runs in a CUDA graph over eight distinct weights, so that nothing is found in the L2 cache.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from few_rows import launch

SHAPES = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (24576, 4096),
    "down": (4096, 12288),
    "head": (151936, 4096),
}
PLANS = (
    (16, 512, 4, 4), (32, 256, 4, 5), (32, 512, 4, 3), (32, 512, 4, 5), (32, 1024, 8, 3), (64, 128, 4, 6),
    (64, 256, 4, 4), (64, 256, 8, 5), (64, 512, 8, 3), (128, 128, 4, 5), (128, 128, 8, 6), (128, 256, 8, 4),
)  # fmt: skip
LAYERS = 8


def timed(work: Callable[[], Any], repeats: int = 9) -> float:
    """Milliseconds of one graph's replay, median."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    taken = []
    for _ in range(repeats):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end))
    return sorted(taken)[repeats // 2]


def main() -> None:
    out, pdl = Path(sys.argv[1]), "--pdl" in sys.argv
    import vllm._C_stable_libtorch  # noqa: F401  # registers the CUTLASS operator

    torch.manual_seed(0)
    rows = 2
    one = torch.full((1,), 0.02, device="cuda")
    plans: dict[str, list[int]] = {}
    figures: dict[str, Any] = {"rows": rows, "shapes": {}}
    best: dict[str, tuple[int, int, int, int]] = {}
    data: dict[str, tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]] = {}
    for name, (outs, size) in SHAPES.items():
        count = 2 if name == "head" else LAYERS
        weights = [torch.randn(outs, size, device="cuda").to(torch.float8_e4m3fn) for _ in range(count)]
        x = torch.randn(rows, size, device="cuda").to(torch.float8_e4m3fn)
        y = torch.empty(rows, outs, device="cuda", dtype=torch.bfloat16)
        data[name] = (weights, x, y)
        scale = torch.rand(rows, 1, device="cuda") + 0.5
        truth = (x.double() @ weights[0].double().t()) * scale.double() * one.double()
        row: dict[str, Any] = {"bytes": outs * size}
        if name != "head":
            row["cutlass_us"] = (
                1000
                / count
                * timed(
                    lambda w=weights, x=x, y=y, s=scale: [
                        torch.ops._C.cutlass_scaled_mm(y, x, v.t(), s, one, None) for v in w
                    ]
                )
            )
        for plan in PLANS:
            if outs % plan[0] or size % plan[1]:
                continue
            try:
                y.fill_(float("nan"))
                launch(x, weights[0], y, scale, one, plan, pdl=pdl)
                error = float((y.double() - truth).norm() / truth.norm())
                if not error < 1e-2:
                    row[str(plan)] = f"wrong: {error}"
                    continue
                took = (
                    1000
                    / count
                    * timed(
                        lambda w=weights, x=x, y=y, s=scale, p=plan: [launch(x, v, y, s, one, p, pdl=pdl) for v in w]
                    )
                )
            except Exception as failure:  # a plan that does not compile or fit is a finding
                row[str(plan)] = f"{type(failure).__name__}: {str(failure)[:120]}"
                continue
            row[str(plan)] = round(took, 2)
            if name not in best or took < row["best_us"]:
                best[name], row["best_us"], row["best"], row["error"] = plan, took, plan, error
        figures["shapes"][name] = row
        if name in best:
            plans[f"{outs},{size}"] = list(best[name])
            rate = row["bytes"] / row["best_us"] / 1e6
            print(
                f"{name}: cutlass {row.get('cutlass_us', 0):.1f} us, few_rows {row['best_us']:.1f} us {best[name]}"
                f" = {rate:.2f} TB/s, error {row['error']:.1e}",
                flush=True,
            )
        else:
            print(name, row, flush=True)
        out.with_suffix(".figures.json").write_text(json.dumps(figures, indent=1))
    # Engines wait for this file: only when every shape is known.
    part = out.with_suffix(".part")
    part.write_text(json.dumps(plans))
    part.replace(out)


if __name__ == "__main__":
    main()
