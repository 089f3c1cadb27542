"""What a sample's bytes depend on beside its arguments: the processor, the number of threads, the libraries.

PyTorch and the libraries below it pick their kernels by the processor and split their sums by the number of threads,
and another kernel or another split rounds differently.
"""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from cosmos3_serve.contract.records import SampleCompute

# Below this many parameters a matrix product on a CPU is over before a second thread has woken up.
SMALL = 100_000_000
LIBRARIES = ("torch", "diffusers", "numpy", "pillow", "av", "imageio-ffmpeg")
# Those of PyTorch, oneDNN, MKL, OpenMP, cuBLAS and cuDNN.
VARIABLES = (
    "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_NUM_THREADS", "MKL_DYNAMIC",
    "OMP_NUM_THREADS", "OMP_DYNAMIC", "OMP_THREAD_LIMIT", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_CUDNN_V8_API_DISABLED",
)  # fmt: skip
CPUINFO = Path("/proc/cpuinfo")
MAX_TEXT = 128


def thread_count(parameters: int, device: torch.device) -> int:
    """How many threads torch gets for a model of this size: one for a small model on a CPU, else as many as it took.

    The threads of a small model would mostly wait for each other, and burn time doing so when other work shares the
    cores; decoding runs beside denoising anyway.
    """
    return 1 if device.type == "cpu" and parameters < SMALL else torch.get_num_threads()


def use_threads(count: int) -> None:
    """Let torch compute with `count` threads in this thread, and in those that ask it for the first time."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def compute_record(device: torch.device, precision: str) -> SampleCompute:
    """The record of what this thread computes, with weights of that precision. The number of threads is torch's own
    answer, asked now."""
    return SampleCompute(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        dtype=precision,
        threads=torch.get_num_threads(),
        cpu=processor(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        libraries=_libraries(),
        environment={name: os.environ[name][:MAX_TEXT] for name in VARIABLES if name in os.environ},
    )


@cache
def processor(path: Path = CPUINFO) -> str:
    """Architecture, maker, family/model/stepping and name of the first processor; the architecture alone where Linux
    does not say more."""
    fields: dict[str, str] = {}
    try:
        first = path.read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0]
    except OSError:
        first = ""
    for line in first.splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    maker = fields.get("vendor_id") or fields.get("CPU implementer")
    numbers = [fields.get(name) for name in ("cpu family", "model", "stepping")]
    if None in numbers:
        numbers = [fields.get(name) for name in ("CPU architecture", "CPU part", "CPU revision")]
    kind = "/".join(number for number in numbers if number)
    return " ".join(part for part in (platform.machine(), maker, kind, fields.get("model name")) if part)[:MAX_TEXT]


@cache
def _libraries() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if "torch" in found:
        found["torch"] = str(torch.__version__)  # with the build's label, such as +cpu
    return found
