"""Arguments of a replica's vLLM server, derived from model, limits and hardware, so that a warm question is cheap.

What is derived and why (figures: one H200, an 8B model, FP8; 30 seconds of 640x360 at 2 frames a second = 60 frames =
30 merged frames x 20 x 11 = 6,600 tokens, "a typical video" below):

encoder cache
    Measured in tokens: the larger of `--max-num-batched-tokens` and the largest single item; vLLM has no other knob.
    By default it holds one typical video, and a prefix hit whose last block ends inside the video then runs the vision
    tower again: prefill 108 ms instead of 20 with four videos in turn. We ask for four typical videos, 26,400, rounded
    up to 32,768, as long as the embeddings (width x (1 + deep-stack levels) x 2 bytes = 32 KiB a token, 1 GiB in all)
    take at most a twentieth of the GPU. Not more: the same number bounds one step of prefill, during which nobody
    else's answer advances.
    On CPU as many tokens as gateways may believe a replica to hold, rounded up (tiny: 49,152, so 65,536), while they
    take at most a twentieth of the machine: with 16,384, two clips of 10 s at 720p (8,800 each) pushed each other out
    and a warm question took 7 s instead of 0.25 (tiny model, two cores). There a step stays at 16,384 by
    `--max-num-scheduled-tokens`. What else the number bounds: the buffers of a step's embeddings, whose size it is, and
    how many tokens of video one step may encode.
processor cache
    One token is 4 patches of 3 x 2 x 16 x 16 float32 = 24 KiB, a typical video 162 MB: with vLLM's 4 GiB a replica
    would hold 26 of them, and each further one costs a decode and the processor again. 64 on a GPU machine, 8 on CPU,
    at most a quarter of the machine's memory over all its replicas.
processor threads
    The video processor is one process; before the engine a cold question takes 366 ms with 16 OpenMP threads and 437
    with 8. More renderer processes are not possible: vLLM refuses them while the processor cache is on. On CPU the
    threads run the model too: at most 8, and cores / replicas. Not on the GPU, where it takes 265 ms: vLLM 0.32 refuses
    that beside the model, since it does not count the processor's memory.
tool calls
    The model's chat template has it write `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, which vLLM's parser
    `hermes` reads. vLLM takes `tools` without a demanded choice only with `--enable-auto-tool-choice`.
per-request media options
    `--trust-request-mm-kwargs`: the gateway is the one client and lets an allow-list through.
media count
    vLLM counts over all messages; the gateway per message. A conversation may repeat its media in four messages.
profiling of media
    Skipped on CPU, where a dummy video of the largest size takes minutes and sizes nothing (the KV space is fixed).
    Kept on GPU: it is what leaves room for the vision tower. The server's own warm-up of the processor takes its
    sizes from `--limit-mm-per-prompt`: small ones on CPU, where those of the longest video cost 4 s of each start.
processes
    vLLM's CPU build gives the model a process apart from the engine's, to pin its threads to cores. Replicas that share
    a machine are not pinned, so the model runs in the engine's: a start costs 38 s of CPU instead of 53 (2 cores, tiny
    model), and a replica half a gigabyte less. vLLM allows it only with its other multiprocessing switched off, which
    means nothing to the server.
compilation
    On compute capability 9.0, where it was measured, kernels are compiled for exactly one and two rows besides: a token
    takes 3.77 ms instead of 3.95 with one answer in flight, 4.15 instead of 4.31 with two; round robin 2.34 questions
    a second instead of 2.28, affinity 3.29 instead of 3.21. The first start takes 263 s instead of 136; the compiled
    code is kept. It is left out where arguments of the operator say how to compile or which graphs to keep, which could
    contradict it (one and two must be sizes of graphs).
    None on CPU: `--enforce-eager` speaks of the model, and some small steps of sampling would still be compiled when
    they are first needed: the first question for logprobs waited 25 s for a C++ compiler, which may not even be there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cosmos3_serve.errors import StartRefused, UsageError
from cosmos3_serve.reasoner.engine.hardware import BF16_SINCE, FP8_SINCE, GIB, Hardware
from cosmos3_serve.reasoner.engine.model_shape import ModelShape
from cosmos3_serve.reasoner.fleet.member import HeldMedia
from cosmos3_serve.settings import ReasonerSettings

TYPICAL_VIDEO = (640, 360, 60)
HELD_BY_ENCODER = 4
MAX_STEP_TOKENS = 32_768
CPU_STEP_TOKENS = 16_384
CPU_ENCODER_SHARE = 0.05
MIN_STEP_TOKENS = 4_096
ENCODER_GPU_SHARE = 0.05
PROCESSED_VIDEOS = {"cuda": 64, "cpu": 8}
HOST_SHARE = 0.25
MAX_THREADS = {"cuda": 16, "cpu": 8}
COMPILED_ROWS = (1, 2)
COMPILED_ON = 9.0  # compute capability: the only one with figures
# Our count of an item's bytes is an estimate: what we believe held must be held.
MIRRORED = 0.9
MAX_HELD_ITEMS = 4096
MESSAGES_WITH_MEDIA = 4
QUEUE_FACTOR = 4
SMALL_DUMMY = {"video": {"num_frames": 2, "width": 64, "height": 64}, "image": {"width": 64, "height": 64}}
HALF, SINGLE = 2, 4  # bytes of a bf16 and of a float32 number

# The service's own; vLLM takes the last of two values, and abbreviations.
RESERVED = (
    "--model", "--served-model-name", "--host", "--port", "--uds", "--api-key", "--middleware", "--root-path",
    "--config", "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--allowed-local-media-path",
    "--allowed-media-domains",
    "--enable-log-requests", "--enable-log-outputs", "--trust-request-mm-kwargs", "--limit-mm-per-prompt",
    "--max-num-seqs", "--max-model-len", "--max-num-queued-reqs", "--mm-processor-cache-gb",
    "--mm-processor-cache-type", "--headless", "--api-server-count", "--enable-request-id-headers",
)  # fmt: skip
# What of an operator's says how the model is compiled.
COMPILING = (
    "--compilation-config", "-cc", "--cudagraph-capture-sizes", "--max-cudagraph-capture-size", "--optimization-level",
    "-O", "-O0", "-O1", "-O2", "-O3", "--enforce-eager", "--speculative-config", "-sc",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """
    Args:
        argv: after the server's module, without address, model and name.
        env: besides the environment that every replica gets.
        held: what gateways may believe a replica to hold.
        facts: for /system-info and the log.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    held: HeldMedia
    max_num_seqs: int
    max_model_len: int
    precision: str
    facts: dict[str, int | float | str] = field(default_factory=dict)


def engine_plan(
    shape: ModelShape, settings: ReasonerSettings, hardware: Hardware, version: tuple[int, ...] = (0, 32)
) -> EnginePlan:
    """What one replica is started with.

    Args:
        version: of vLLM.

    Raises:
        UsageError: a --vllm-arg that is the service's own.
        StartRefused: `precision_unsupported`.
    """
    check_extra(settings.vllm_args)
    precision = choose_precision(settings.precision, hardware)
    on_cpu = hardware.kind == "cpu"
    sharing = _sharing(settings.workers.most, hardware)
    max_num_seqs = settings.max_num_seqs or (8 if on_cpu else 64)
    max_model_len = min(settings.max_model_len or (16_384 if on_cpu else 32_768), shape.max_positions)
    cache_gib = _processor_cache_gib(shape, hardware, sharing)
    held = HeldMedia(bytes=int(cache_gib * GIB * MIRRORED), items=MAX_HELD_ITEMS)
    step_tokens = _step_tokens(shape, hardware, sharing, held)
    threads = max(1, min(MAX_THREADS[hardware.kind], hardware.cpus // sharing))
    limits: dict[str, Any] = {
        "video": settings.videos_per_message * MESSAGES_WITH_MEDIA,
        "image": settings.images_per_message * MESSAGES_WITH_MEDIA,
    }
    if on_cpu:
        limits = {kind: {"count": count, **SMALL_DUMMY[kind]} for kind, count in limits.items()}
    argv = [
        *_arithmetic(precision, shape),
        *("--max-model-len", str(max_model_len)),
        *("--max-num-seqs", str(max_num_seqs)),
        *("--max-num-batched-tokens", str(step_tokens)),
        *("--mm-processor-cache-gb", f"{cache_gib:g}"),
        *("--limit-mm-per-prompt", json.dumps(limits, separators=(",", ":"))),
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--disable-uvicorn-access-log",
        "--disable-fastapi-docs",
        # A replica fetches nothing: the gateway sends bytes. Should a URL slip through, it leads nowhere.
        *("--allowed-media-domains", "nowhere.invalid"),
    ]
    env = {"OMP_NUM_THREADS": str(threads)}
    if settings.tool_parser != "none":
        argv += ["--enable-auto-tool-choice", "--tool-call-parser", settings.tool_parser]
    if version >= (0, 32):
        argv += ["--trust-request-mm-kwargs", "--max-num-queued-reqs", str(QUEUE_FACTOR * max_num_seqs)]
    facts: dict[str, int | float | str] = {
        "precision": precision,
        "processor_cache_gib": cache_gib,
        "threads": threads,
    }
    sized = not _given(settings.vllm_args, "--max-num-batched-tokens")
    if sized:
        facts |= {"step_tokens": step_tokens, "encoder_tokens": step_tokens}
    if on_cpu:
        kv_gib = _cpu_kv_gib(shape, hardware, sharing, max_num_seqs * max_model_len)
        argv += ["--enforce-eager", "--skip-mm-profiling", "--distributed-executor-backend", "uni"]
        env |= {
            "VLLM_CPU_KVCACHE_SPACE": str(kv_gib),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "TORCH_COMPILE_DISABLE": "1",
        }
        facts["kv_cache_gib"] = kv_gib
        # vLLM does not check it against a smaller number of the operator's.
        if sized and step_tokens > CPU_STEP_TOKENS:
            argv += ["--max-num-scheduled-tokens", str(CPU_STEP_TOKENS)]
            facts["step_tokens"] = CPU_STEP_TOKENS
    elif hardware.capability == COMPILED_ON and not _given(settings.vllm_args, *COMPILING):
        argv += ["--compilation-config", json.dumps({"compile_sizes": COMPILED_ROWS}, separators=(",", ":"))]
    return EnginePlan(
        argv=(*argv, *settings.vllm_args),
        env=env,
        held=held,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        precision=precision,
        facts=facts,
    )


def choose_precision(asked: str, hardware: Hardware) -> str:
    """fp8, bf16 or fp32.

    Raises:
        StartRefused: `precision_unsupported`: this machine cannot.
    """
    if hardware.kind == "cpu":
        if asked == "fp8":
            raise StartRefused(
                "fp8 needs a GPU, and this machine shows none",
                code="precision_unsupported",
                remedy="use --precision auto, or start on a machine whose GPU is visible",
            )
        return "fp32" if asked == "auto" else asked
    best = "fp8" if hardware.capability >= FP8_SINCE else "bf16" if hardware.capability >= BF16_SINCE else "fp32"
    needed = {"fp8": FP8_SINCE, "bf16": BF16_SINCE}.get(asked, 0.0)
    if hardware.capability < needed:
        raise StartRefused(
            f"{asked} needs a GPU of compute capability {needed:g}, and this one has {hardware.capability:g}",
            code="precision_unsupported",
            remedy=f"use --precision {best}",
        )
    return best if asked == "auto" else asked


def check_extra(extra: Sequence[str]) -> None:
    """
    Raises:
        UsageError: an argument that is the service's own, or would be taken for one.
    """
    for word in extra:
        if _given([word], *RESERVED):
            raise UsageError(
                f"--vllm-arg {_flag(word)}: the service sets this itself",
                remedy="use the service's own flags; `cosmos3 reasoner serve --help` lists them",
            )


def _sharing(workers: int, hardware: Hardware) -> int:
    """Replicas that share this machine."""
    return max(1, min(workers, hardware.gpus) if hardware.kind == "cuda" else workers)


def _given(extra: Sequence[str], *names: str) -> bool:
    """Whether one of these is among the operator's arguments: vLLM takes abbreviations, and `--name.key` too."""
    flags = {_flag(word) for word in extra if word.startswith("-")}
    return any(own == flag or (flag.startswith("--") and own.startswith(flag)) for own in names for flag in flags)


def _flag(word: str) -> str:
    return word.partition("=")[0].partition(".")[0].replace("_", "-")


def _step_tokens(shape: ModelShape, hardware: Hardware, sharing: int, held: HeldMedia) -> int:
    """`--max-num-batched-tokens`: the encoder cache, and on a GPU a step."""
    on_cpu = hardware.kind == "cpu"
    if on_cpu:
        wanted = held.bytes // shape.processed_bytes_per_token
        memory, least = hardware.host_bytes * CPU_ENCODER_SHARE / sharing, CPU_STEP_TOKENS
    else:
        wanted = HELD_BY_ENCODER * shape.video_tokens(*TYPICAL_VIDEO)
        memory, least = hardware.gpu_bytes * ENCODER_GPU_SHARE, MIN_STEP_TOKENS
    affordable = int(memory) // (shape.embedding_width * (SINGLE if on_cpu else HALF))
    rounded = 1 << max(0, math.ceil(math.log2(max(1, wanted))))
    while rounded > max(least, affordable):
        rounded //= 2
    return max(least, rounded if on_cpu else min(MAX_STEP_TOKENS, rounded))


def _processor_cache_gib(shape: ModelShape, hardware: Hardware, sharing: int) -> float:
    typical = shape.video_tokens(*TYPICAL_VIDEO) * shape.processed_bytes_per_token
    largest = shape.largest_video_tokens * shape.processed_bytes_per_token
    wanted = PROCESSED_VIDEOS[hardware.kind] * typical
    affordable = hardware.host_bytes * HOST_SHARE / sharing
    # The largest allowed item must fit whatever the machine, or it would be processed for each question.
    return math.ceil(max(min(wanted, affordable), 1.25 * largest) / GIB * 4) / 4


def _cpu_kv_gib(shape: ModelShape, hardware: Hardware, sharing: int, tokens: int) -> int:
    wanted = tokens * shape.kv_numbers * 4
    affordable = hardware.host_bytes * HOST_SHARE / sharing
    return max(1, math.ceil(min(wanted, affordable) / GIB))


def _arithmetic(precision: str, shape: ModelShape) -> list[str]:
    if precision == "fp32":
        return ["--dtype", "float32"]
    if precision == "fp8" and not shape.quantized:
        return ["--dtype", "bfloat16", "--quantization", "fp8"]
    return ["--dtype", "bfloat16"]
