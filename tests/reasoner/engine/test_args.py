"""Arguments of the engine from model, limits and hardware: tables, no vLLM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tiny import tiny_checkpoint

from cosmos3_serve.errors import CheckpointUnavailable, StartRefused, UsageError
from cosmos3_serve.reasoner.engine.args import EnginePlan, choose_precision, engine_plan
from cosmos3_serve.reasoner.engine.hardware import GIB, Hardware, detect
from cosmos3_serve.reasoner.engine.model_shape import ModelShape, read_shape
from cosmos3_serve.settings import ReasonerSettings

NANO = ModelShape()
CPU = Hardware("cpu", cpus=2, host_bytes=24 * GIB)
LARGE_CPU = Hardware("cpu", cpus=64, host_bytes=256 * GIB)
TINY = ModelShape(embedding_width=128 * 3, kv_numbers=2 * 4 * 2 * 64)
H200 = Hardware("cuda", cpus=16, host_bytes=128 * GIB, gpus=1, gpu_bytes=141 * GIB, capability=9.0)
EIGHT = Hardware("cuda", cpus=128, host_bytes=560 * GIB, gpus=8, gpu_bytes=141 * GIB, capability=9.0)
L4 = Hardware("cuda", cpus=8, host_bytes=32 * GIB, gpus=1, gpu_bytes=24 * GIB, capability=8.9)
B200 = Hardware("cuda", cpus=16, host_bytes=128 * GIB, gpus=1, gpu_bytes=180 * GIB, capability=10.0)
T4 = Hardware("cuda", cpus=4, host_bytes=16 * GIB, gpus=1, gpu_bytes=15 * GIB, capability=7.5)


def plan(hardware: Hardware, shape: ModelShape = NANO, **settings: object) -> EnginePlan:
    return engine_plan(shape, ReasonerSettings(**settings), hardware)


def value(found: EnginePlan, flag: str) -> str | None:
    return found.argv[found.argv.index(flag) + 1] if flag in found.argv else None


@pytest.mark.parametrize(
    ("size", "tokens"),
    [
        ((640, 360, 60), 6_600),  # measured: a prompt of 6,880 to 6,889 with text and timestamps
        ((1280, 720, 60), 11_700),  # measured: 11,980 to 11,989; scaled down to 26 x 15
        ((320, 240, 60), 2_400),  # measured: 2,680
        ((32, 32, 1), 1),
        ((1, 1, 2), 1),
    ],
)
def test_tokens_of_a_video(size: tuple[int, int, int], tokens: int) -> None:
    assert NANO.video_tokens(*size) == tokens


def test_bytes_of_a_typical_processed_video() -> None:
    assert NANO.video_tokens(640, 360, 60) * NANO.processed_bytes_per_token == pytest.approx(162e6, rel=0.01)


def test_the_shape_of_the_tiny_checkpoint_is_read_from_its_files() -> None:
    shape = read_shape(tiny_checkpoint().path)
    assert (shape.patch, shape.merge, shape.temporal, shape.max_positions) == (16, 2, 2, 262_144)
    assert shape.embedding_width == 128 * 3, "one embedding and two deep-stack levels"
    assert shape.kv_numbers == 2 * 4 * 2 * 64


def test_a_directory_that_is_no_reasoner_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"text_config": {}}')
    with pytest.raises(CheckpointUnavailable) as refused:
        read_shape(tmp_path)
    assert refused.value.stable_code == "checkpoint_incomplete"


@pytest.mark.parametrize(
    ("hardware", "workers", "expected"),
    [
        (H200, 1, {"step": "32768", "seqs": "64", "len": "32768", "cache": "9.75", "threads": "16"}),
        (EIGHT, 8, {"step": "32768", "seqs": "64", "len": "32768", "cache": "9.75", "threads": "16"}),
        (L4, 1, {"step": "32768", "seqs": "64", "len": "32768", "cache": "8", "threads": "8"}),
        (T4, 1, {"step": "16384", "seqs": "64", "len": "32768", "cache": "4", "threads": "4"}),
        (CPU, 1, {"step": "16384", "seqs": "8", "len": "16384", "cache": "1.25", "threads": "2"}),
        (CPU, 2, {"step": "16384", "seqs": "8", "len": "16384", "cache": "1.25", "threads": "1"}),
        (LARGE_CPU, 1, {"step": "65536", "seqs": "8", "len": "16384", "cache": "1.25", "threads": "8"}),
    ],
)
def test_what_is_derived(hardware: Hardware, workers: int, expected: dict[str, str]) -> None:
    found = plan(hardware, workers=workers)
    assert {
        "step": value(found, "--max-num-batched-tokens"),
        "seqs": value(found, "--max-num-seqs"),
        "len": value(found, "--max-model-len"),
        "cache": value(found, "--mm-processor-cache-gb"),
        "threads": found.env["OMP_NUM_THREADS"],
    } == expected


@pytest.mark.parametrize("hardware", [CPU, H200, T4])
def test_a_replica_holds_the_largest_video_and_gateways_believe_less_than_it_holds(hardware: Hardware) -> None:
    found = plan(hardware, workers=1)
    cache = float(value(found, "--mm-processor-cache-gb") or 0) * GIB
    assert NANO.largest_video_tokens * NANO.processed_bytes_per_token < found.held.bytes < cache


def test_the_encoder_cache_of_an_h200_holds_four_typical_videos_within_a_twentieth_of_it() -> None:
    tokens = int(value(plan(H200), "--max-num-batched-tokens") or 0)
    assert tokens >= 4 * NANO.video_tokens(640, 360, 60)
    assert tokens * NANO.embedding_width * 2 <= 0.05 * H200.gpu_bytes


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_encoder_cache_on_a_cpu_holds_what_gateways_believe_held_for_a_tenth_of_a_gigabyte(workers: int) -> None:
    found = plan(CPU, TINY, workers=workers)
    tokens = int(value(found, "--max-num-batched-tokens") or 0)
    assert tokens == 65_536 >= found.held.bytes / TINY.processed_bytes_per_token
    assert tokens * TINY.embedding_width * 4 < 0.11e9
    assert value(found, "--max-num-scheduled-tokens") == "16384", "a step does not grow with the cache"
    assert (found.facts["encoder_tokens"], found.facts["step_tokens"]) == (65_536, 16_384)


def test_a_step_is_left_alone_where_the_operator_sizes_the_buffers_or_it_is_no_smaller() -> None:
    assert value(plan(CPU), "--max-num-scheduled-tokens") is None
    assert value(plan(H200), "--max-num-scheduled-tokens") is None
    for extra in (("--max-num-batched-tokens=8192",), ("--max_num_batched_tokens", "8192"), ("--max-num-b=8192",)):
        found = plan(CPU, TINY, vllm_args=extra)
        assert value(found, "--max-num-scheduled-tokens") is None
        assert not {"step_tokens", "encoder_tokens"} & found.facts.keys(), "the operator's numbers are not known here"


def test_one_and_two_rows_are_compiled_for_where_that_was_measured_only() -> None:
    for card in (H200, EIGHT):
        assert json.loads(value(plan(card), "--compilation-config") or "") == {"compile_sizes": [1, 2]}
    for other in (CPU, L4, T4, B200):
        assert value(plan(other), "--compilation-config") is None


@pytest.mark.parametrize(
    "extra",
    [
        ("--compilation-config", '{"mode":0}'), ('--compilation-config={"mode":0}',), ("--compilation_config.mode=0",),
        ("-cc.mode=0",), ("-cc", '{"mode":0}'), ("-O0",), ("-O", "1"), ("-O=2",), ("--enforce-eager",), ("--compil=x",),
        ("--cudagraph-capture-sizes", "4", "8"), ("--speculative-config", "{}"),
    ],
)  # fmt: skip
def test_an_operator_who_says_how_to_compile_wins(extra: tuple[str, ...]) -> None:
    found = plan(H200, vllm_args=extra)
    assert found.argv[-len(extra) :] == extra
    assert '{"compile_sizes":[1,2]}' not in found.argv


def test_a_replica_has_time_for_a_first_start_that_compiles() -> None:
    assert ReasonerSettings().start_timeout_s >= 2 * 263, "measured on an H200"


def test_only_a_cpu_goes_without_graphs_media_profiling_and_a_process_for_the_model() -> None:
    for flag in ("--enforce-eager", "--skip-mm-profiling", "--distributed-executor-backend"):
        assert flag in plan(CPU).argv
        assert flag not in plan(H200).argv
    assert plan(CPU).env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0", "without it vLLM gives the model a process again"
    assert plan(CPU).env["TORCH_COMPILE_DISABLE"] == "1"
    assert not {"VLLM_ENABLE_V1_MULTIPROCESSING", "TORCH_COMPILE_DISABLE"} & plan(H200).env.keys()
    dummy = json.loads(value(plan(CPU), "--limit-mm-per-prompt") or "")["video"]
    assert (dummy["num_frames"], dummy["width"], dummy["height"]) == (2, 64, 64)
    assert plan(CPU).env["VLLM_CPU_KVCACHE_SPACE"] == "6", "an 8B model: a quarter of the machine"
    assert plan(CPU, ModelShape(kv_numbers=1024)).env["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" not in plan(H200).env


def test_what_every_replica_gets() -> None:
    for hardware in (CPU, H200):
        found = plan(hardware, videos_per_message=2, images_per_message=3)
        for flag in ("--enable-prefix-caching", "--enable-prompt-tokens-details", "--trust-request-mm-kwargs"):
            assert flag in found.argv
        limits = json.loads(value(found, "--limit-mm-per-prompt") or "")
        counts = {kind: limit["count"] if hardware is CPU else limit for kind, limit in limits.items()}
        assert counts == {"video": 8, "image": 12}
        assert value(found, "--allowed-media-domains") == "nowhere.invalid"


def test_tool_calls_are_read_as_the_model_s_template_writes_them_unless_switched_off() -> None:
    for hardware in (CPU, H200):
        found = plan(hardware)
        assert "--enable-auto-tool-choice" in found.argv and value(found, "--tool-call-parser") == "hermes"
        assert value(plan(hardware, tool_parser="qwen3_coder"), "--tool-call-parser") == "qwen3_coder"
        off = plan(hardware, tool_parser="none").argv
        assert "--enable-auto-tool-choice" not in off and "--tool-call-parser" not in off


def test_an_older_vllm_is_not_given_what_it_does_not_know() -> None:
    argv = engine_plan(NANO, ReasonerSettings(), H200, version=(0, 25)).argv
    assert "--trust-request-mm-kwargs" not in argv


def test_settings_win_and_the_model_bounds_the_length() -> None:
    found = plan(H200, ModelShape(max_positions=4096), max_num_seqs=3, max_model_len=9000)
    assert (found.max_num_seqs, found.max_model_len) == (3, 4096)


@pytest.mark.parametrize(
    ("asked", "hardware", "given"),
    [
        ("auto", CPU, "fp32"), ("fp32", CPU, "fp32"), ("bf16", CPU, "bf16"),
        ("auto", H200, "fp8"), ("auto", T4, "fp32"), ("bf16", H200, "bf16"), ("fp32", H200, "fp32"),
    ],
)  # fmt: skip
def test_precision(asked: str, hardware: Hardware, given: str) -> None:
    assert choose_precision(asked, hardware) == given


@pytest.mark.parametrize(("asked", "hardware"), [("fp8", CPU), ("fp8", T4), ("bf16", T4)])
def test_precision_that_the_machine_cannot_is_refused_with_one_that_it_can(asked: str, hardware: Hardware) -> None:
    with pytest.raises(StartRefused) as refused:
        choose_precision(asked, hardware)
    assert refused.value.stable_code == "precision_unsupported"
    assert "--precision" in refused.value.remedy


def test_fp8_is_asked_of_vllm_unless_the_weights_are_stored_so() -> None:
    assert value(plan(H200), "--quantization") == "fp8"
    assert value(plan(H200, ModelShape(quantized=True)), "--quantization") is None
    assert value(plan(H200, precision="bf16"), "--quantization") is None
    assert value(plan(CPU), "--dtype") == "float32"


@pytest.mark.parametrize(
    "extra",
    [
        "--host=0.0.0.0",
        "--port",
        "--api_key=x",
        "--middle",
        "--limit-mm-per-prompt.video=9",
        "--max-num-seqs",
        "--conf",
    ],
)
def test_an_argument_that_is_the_services_own_is_refused(extra: str) -> None:
    with pytest.raises(UsageError):
        plan(CPU, vllm_args=(extra,))


def test_other_arguments_come_last_so_that_they_win() -> None:
    extra = ("--gpu-memory-utilization=0.8", "--max-num-batched-tokens", "8192", "-tp", "1")
    assert plan(H200, vllm_args=extra).argv[-len(extra) :] == extra


def test_no_gpu_is_seen_when_none_may_be_used() -> None:
    here = detect({"CUDA_VISIBLE_DEVICES": ""})
    assert here.kind == "cpu"
    assert here.cpus >= 1
    assert here.host_bytes > GIB
