"""FP8 products of few rows (1 to 16) against weights in [out, in] order, as one Triton kernel: a lever under test.

CUTLASS' FP8 kernels read the weights of this model at 3.07 TB/s when there are one to eight rows (one H200; a copy
moves 4.2). Here the weights are the product's left side, so that narrow tiles over the outputs keep every
multiprocessor busy, and each tile streams its rows through several stages. With `PDL` the kernel may be launched before
the one before it has ended: it asks for the first weights at once and waits only before it reads the activations.

Measured (results/2026-11-30-h200-reasoner.md): no faster than CUTLASS over a whole layer. The service does not use it.

As a vLLM plugin (entry point `vllm.general_plugins`, function `install`) it takes the place of the CUTLASS call for few
rows; longer inputs go on as before. Environment:

    COSMOS3_FEW_ROWS         path of a JSON file {"N,K": [BN, BK, warps, stages]}, written by `tune.py`
    COSMOS3_FEW_ROWS_PDL     1: programmatic dependent launch
    COSMOS3_FEW_ROWS_HEAD    1: the output head too, in FP8 with a scale per token (it is bfloat16 otherwise)
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

MAX_ROWS = 16
WAIT_S = 150.0
DEFAULT = (32, 512, 4, 4)


@triton.jit
def few_rows_kernel(
    x, w, y, sx, sw, M, N, K: tl.constexpr, stride_y,
    BN: tl.constexpr, BK: tl.constexpr, BM: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y[m, n] = sx[m] * sw * sum over k of x[m, k] * w[n, k]; x, w FP8, y bfloat16; one program per BN outputs."""
    n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    m = tl.arange(0, BM)
    k = tl.arange(0, BK)
    if PDL:
        # Weights depend on nothing: on their way into the L2 cache while the kernel before still works.
        first = tl.arange(0, AHEAD) * 128
        place = (w + n[:, None] * K + first[None, :]).to(tl.int64)
        tl.inline_asm_elementwise(
            "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [place], dtype=tl.int32, is_pure=False, pack=1
        )
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    weights = w + n[:, None] * K + k[None, :]
    rows = x + m[None, :] * K + k[:, None]
    sums = tl.zeros([BN, BM], dtype=tl.float32)
    for _ in range(0, K, BK):
        tile = tl.load(weights, eviction_policy="evict_first")
        part = tl.load(rows, mask=m[None, :] < M, other=0.0)
        sums = tl.dot(tile, part, sums)
        weights += BK
        rows += BK
    scale = tl.load(sx + m, mask=m < M, other=0.0) * tl.load(sw)
    out = y + m[None, :] * stride_y + n[:, None]
    tl.store(out, (sums * scale[None, :]).to(tl.bfloat16), mask=(m[None, :] < M) & (n[:, None] < N))


def launch(
    x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, sx: torch.Tensor, sw: torch.Tensor,
    plan: tuple[int, int, int, int], *, pdl: bool = False,
) -> None:  # fmt: skip
    """
    Args:
        x: [rows, K] FP8; w: [N, K] FP8, N a multiple of the plan's BN; y: [rows, N] bfloat16.
        sx: [rows, 1] float32; sw: one float32.
        plan: BN, BK, warps, stages; K is a multiple of BK.
    """
    rows, size = x.shape
    outs = w.shape[0]
    bn, bk, warps, stages = plan
    extra: dict[str, Any] = {"launch_pdl": True} if pdl else {}
    few_rows_kernel[(triton.cdiv(outs, bn),)](
        x, w, y, sx, sw, rows, outs, size, y.stride(0),
        BN=bn, BK=bk, BM=MAX_ROWS, AHEAD=8 if size >= 1024 else 1, PDL=pdl,
        num_warps=warps, num_stages=stages, **extra,
    )  # fmt: skip


class Plans:
    """The tuned plans, read when first asked for. `DEFAULT` for a shape that was not tuned but divides, else None.

    Tuning runs while engines start, so a file that is not there yet is waited for.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, ...]] | None = None
        self.pdl = os.environ.get("COSMOS3_FEW_ROWS_PDL") == "1"

    def _read(self) -> dict[str, tuple[int, ...]]:
        named = os.environ.get("COSMOS3_FEW_ROWS", "")
        until = time.monotonic() + WAIT_S
        while named and not Path(named).is_file() and time.monotonic() < until:
            time.sleep(0.5)
        text = Path(named).read_text() if named and Path(named).is_file() else "{}"
        return {key: tuple(plan) for key, plan in json.loads(text).items()}

    def of(self, outs: int, size: int) -> tuple[int, int, int, int] | None:
        if self._known is None:
            self._known = self._read()
        plan = self._known.get(f"{outs},{size}", DEFAULT)
        return plan if outs % plan[0] == 0 and size % plan[1] == 0 else None  # type: ignore[return-value]


_installed = False


def install() -> None:
    """Put the kernel before CUTLASS' for few rows. May be called in every process of vLLM, and twice."""
    global _installed
    if _installed:
        return
    _installed = True
    from vllm.model_executor.kernels.linear.scaled_mm.cutlass import CutlassFP8ScaledMMLinearKernel
    from vllm.utils.torch_utils import direct_register_custom_op

    plans = Plans()

    def product(a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor) -> torch.Tensor:
        out = torch.empty((a.shape[0], b.shape[1]), dtype=torch.bfloat16, device=a.device)
        plan = plans.of(b.shape[1], b.shape[0])
        few = 0 < a.shape[0] <= MAX_ROWS and plan is not None and sb.numel() == 1 and sa.numel() == a.shape[0]
        if few and b.stride(0) == 1 and a.is_contiguous():
            assert plan is not None
            launch(a, b.t(), out, sa, sb, plan, pdl=plans.pdl)
        else:
            torch.ops._C.cutlass_scaled_mm(out, a, b, sa, sb, None)
        return out

    def shape_of(a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor) -> torch.Tensor:
        return torch.empty((a.shape[0], b.shape[1]), dtype=torch.bfloat16, device=a.device)

    direct_register_custom_op("cosmos3_few_rows", product, fake_impl=shape_of)
    before = CutlassFP8ScaledMMLinearKernel.apply_scaled_mm

    def apply(self: Any, *, A: Any, B: Any, out_dtype: Any, As: Any, Bs: Any, bias: Any, output_shape: Any) -> Any:
        padded = A.shape[1] != B.shape[0] or B.shape[1] != self.logical_output_size
        if bias is not None or padded or out_dtype is not torch.bfloat16:
            return before(self, A=A, B=B, out_dtype=out_dtype, As=As, Bs=Bs, bias=bias, output_shape=output_shape)
        return torch.ops.vllm.cosmos3_few_rows(A, B, As, Bs).view(*output_shape)

    CutlassFP8ScaledMMLinearKernel.apply_scaled_mm = apply
    if os.environ.get("COSMOS3_FEW_ROWS_HEAD") == "1":
        _quantized_head(plans)


def _quantized_head(plans: Plans) -> None:
    from vllm import _custom_ops as ops
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    before = LogitsProcessor._get_logits

    def logits(self: Any, hidden: torch.Tensor, head: Any, bias: Any) -> Any:
        weight = head.weight
        plan = plans.of(weight.shape[0], weight.shape[1])
        if bias is not None or plan is None or hidden.shape[0] > MAX_ROWS or hidden.dtype is not torch.bfloat16:
            return before(self, hidden, head, bias)
        if not hasattr(head, "_cosmos3_fp8"):
            head._cosmos3_fp8 = ops.scaled_fp8_quant(weight.data)
        small, scale = head._cosmos3_fp8
        rows, row_scale = ops.scaled_fp8_quant(hidden.contiguous(), use_per_token_if_dynamic=True)
        out = torch.empty((hidden.shape[0], weight.shape[0]), dtype=torch.bfloat16, device=hidden.device)
        launch(rows, small, out, row_scale, scale, plan, pdl=False)
        return out[..., : self.org_vocab_size]

    LogitsProcessor._get_logits = logits
