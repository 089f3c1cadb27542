"""What the three stages share: device, pictures from state rows, schedules by the clock, checkpoints."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cosmos3_serve.blockworld import draw


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def autocast() -> Any:
    return torch.autocast("cuda", torch.bfloat16, enabled=torch.cuda.is_available())


def on(array: np.ndarray, dtype: torch.dtype | None = None) -> Tensor:
    tensor = torch.from_numpy(array).to(device())
    return tensor if dtype is None else tensor.to(dtype)


_KERNEL: Callable[..., Tensor] | None = None


@torch.no_grad()
def painted(state: Tensor, size: tuple[int, int], crop: tuple[int, int, int, int] | None = None) -> Tensor:
    """[n, h, w, 3] uint8 of state rows [n, fields]; `crop`: (x, y, w, h), only this part is painted."""
    global _KERNEL
    crop = crop or (0, 0, *size)
    if not state.is_cuda:
        return _by_arrays(state, size, crop)
    if _KERNEL is None:
        import painter

        gap = (painter.paint(state[:8], size, crop).int() - _by_arrays(state[:8], size, crop).int()).abs()
        if int(gap.max()) > 2:
            raise RuntimeError(f"the kernel paints other pictures than draw.paint: {int(gap.max())} levels apart")
        _KERNEL = painter.paint
    return torch.cat([_KERNEL(rows, size, crop) for rows in state.split(8192)])


def _by_arrays(state: Tensor, size: tuple[int, int], crop: tuple[int, int, int, int]) -> Tensor:
    x0, y0, w, h = crop
    x = (torch.arange(w, device=state.device) + x0 + 0.5)[None, None, :]
    y = (torch.arange(h, device=state.device) + y0 + 0.5)[None, :, None]
    return (draw.paint(torch, state, *size, (x, y)).clamp(0, 1) * 255 + 0.5).to(torch.uint8)


def pictures(state: Tensor, size: tuple[int, int]) -> Tensor:
    """[n, h, w, 3] in 0..1, in 256 levels as files hold them, of state rows [n, fields]."""
    return painted(state, size).float() / 255


class Clock:
    """Learning rate by the share of the time (or steps) that is gone: a run ends when it was to end."""

    def __init__(self, seconds: float, rate: float, *, steps: int | None = None, warm: float = 0.02) -> None:
        self.began, self.seconds, self.rate, self.steps, self.warm = time.monotonic(), seconds, rate, steps, warm
        self.step = 0

    @property
    def gone(self) -> float:
        if self.steps is not None:
            return self.step / self.steps
        return (time.monotonic() - self.began) / self.seconds

    def running(self) -> bool:
        return self.gone < 1.0

    def tick(self, optimizer: torch.optim.Optimizer) -> float:
        self.step += 1
        gone = min(1.0, self.gone)
        # A warm-up by steps as well, since the first seconds go by with few of them.
        up = min(1.0, gone / self.warm, self.step / 100)
        down = 0.5 * (1 + math.cos(math.pi * gone))
        rate = self.rate * max(0.01, up * down)
        for group in optimizer.param_groups:
            group["lr"] = rate
        return rate


class Average:
    """Moving average of parameters."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], decay: float = 0.998) -> None:
        self.live = list(parameters)
        self.kept = [p.detach().clone() for p in self.live]
        self.decay, self.count = decay, 0

    @torch.no_grad()
    def update(self) -> None:
        self.count += 1
        decay = min(self.decay, (1 + self.count) / (10 + self.count))
        torch._foreach_lerp_(self.kept, self.live, 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the average and the live values: call twice to look at the average and go on."""
        for live, kept in zip(self.live, self.kept, strict=True):
            held = live.detach().clone()
            live.copy_(kept)
            kept.copy_(held)


def adam(parameters: Iterable[torch.nn.Parameter], rate: float) -> torch.optim.AdamW:
    every = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in every if p.ndim > 1], "weight_decay": 0.02},
        {"params": [p for p in every if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), eps=1e-8, fused=torch.cuda.is_available())


def save(path: Path, **parts: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(parts, partial)
    partial.rename(path)


def half(module: Any) -> dict[str, Tensor]:
    """A state dict in bfloat16, on the CPU."""
    return {
        k: v.detach().to("cpu", torch.bfloat16 if v.is_floating_point() else v.dtype)
        for k, v in module.state_dict().items()
    }


class Log:
    def __init__(self, path: Path, name: str) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path / f"{name}.jsonl"
        self.name, self.began, self.last = name, time.monotonic(), 0.0

    def __call__(self, every: float = 0.0, /, **values: Any) -> None:
        now = time.monotonic()
        if now - self.last < every:
            return
        self.last = now
        values = {
            k: round(float(v.detach() if isinstance(v, Tensor) else v), 5) if isinstance(v, (float, Tensor)) else v
            for k, v in values.items()
        }
        line = {"t": round(now - self.began, 1), **values}
        print(self.name, json.dumps(line), flush=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
