"""Test support: the six patches under which the pinned framework runs without a GPU. Never part of the package.

1. calls that name CUDA go to the CPU (a TorchFunctionMode in the worker's thread);
2. attention is torch's scaled_dot_product_attention (upstream has no CPU backend);
3. `init_weights` runs after `build_net` on a CPU too, so that the rotary buffers are float32;
4. `linear` adapts weight and bias to its input's dtype, in place of autocast("cuda", dtype=float32);
5. `torch.cuda.synchronize` does nothing;
6. `distributed.init` does nothing (it asks NVML for a device).

What is left of upstream is everything else: deployment, worker, batching, sampling, decoding, writing files.
"""

import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
EVENTS_ENV = "COSMOS3_TEST_FRAMEWORK_EVENTS"


def _on_cuda(value: Any) -> bool:
    return isinstance(value, str | torch.device) and str(value).startswith("cuda")


class CpuMode(TorchFunctionMode):
    """Patches 1 and 4."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "cuda" and args and isinstance(args[0], torch.Tensor):
            return args[0]
        if _on_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
        if name == "to":
            args = tuple(CPU if _on_cuda(value) else value for value in args)
        if func is F.linear and args[0].dtype != args[1].dtype:
            dtype = args[0].dtype
            args = (args[0], *(None if value is None else value.to(dtype) for value in args[1:]))
        return func(*args, **kwargs)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool = False,
    causal_type: Any = None,
    scale: float | None = None,
    cumulative_seqlen_Q: torch.Tensor | None = None,
    cumulative_seqlen_KV: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """Patch 2. [B, S, H, D] in and out; with cumulative lengths each packed sequence sees itself only."""

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        grouped = q.shape[2] != k.shape[2]
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale, enable_gqa=grouped)
        return out.transpose(1, 2)

    if cumulative_seqlen_Q is None or cumulative_seqlen_KV is None:
        return plain(query, key, value)
    out = torch.zeros(*query.shape[:3], value.shape[-1], dtype=query.dtype)
    ends_q, ends_kv = cumulative_seqlen_Q.tolist(), cumulative_seqlen_KV.tolist()
    for q0, q1, k0, k1 in zip(ends_q, ends_q[1:], ends_kv, ends_kv[1:], strict=False):
        out[:, q0:q1] = plain(query[:, q0:q1], key[:, k0:k1], value[:, k0:k1])
    return out


def apply(inference: ModuleType) -> None:
    """Patch upstream's modules; `inference` is its `inference.inference`, just imported."""
    import cosmos_framework.model.generator.mot.attention as mot_attention
    import cosmos_framework.model.generator.mot.inference_text_kv_memory as text_memory
    import cosmos_framework.model.generator.mot.unified_mot as unified
    import cosmos_framework.model.generator.omni_mot_model as omni
    from cosmos_framework.utils import distributed

    torch.cuda.synchronize = lambda *_, **__: None
    distributed.init = lambda: None
    mot_attention.attention = text_memory.attention = unified.imaginaire_attention = attention

    build_net = omni.OmniMoTModel.build_net

    def build_on_cpu(self: Any, *args: Any, **kwargs: Any) -> Any:
        net = build_net(self, *args, **kwargs)
        net.init_weights(buffer_device="cpu")
        return net

    omni.OmniMoTModel.build_net = build_on_cpu

    create = inference.OmniInference._create.__func__

    def create_on_cpu(cls: Any, *args: Any, **kwargs: Any) -> Any:
        CpuMode().__enter__()
        torch.set_num_threads(1)  # one core of a shared machine: more would only spin
        return create(cls, *args, **kwargs)

    inference.OmniInference._create = classmethod(create_on_cpu)
    _observe(inference)


def _observe(inference: ModuleType) -> None:
    """Not a patch of behaviour: note how many samples each `generate_batch` call of upstream got."""
    path = os.environ.get(EVENTS_ENV)
    if not path:
        return
    generate = inference.OmniInference.generate_batch

    def noted(self: Any, samples: Any, *args: Any, **kwargs: Any) -> Any:
        event = {"event": "OmniInference.generate_batch", "names": [sample.name for sample in samples]}
        with Path(path).open("a") as events:
            events.write(json.dumps(event) + "\n")
        return generate(self, samples, *args, **kwargs)

    inference.OmniInference.generate_batch = noted
