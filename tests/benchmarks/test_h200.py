"""The H200 benchmark asks the mix that it says, and refuses a cell that is not what it claims. No GPU is needed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from measure.result import InvalidRun

from cosmos3_serve.media.limits import ReadLimits
from cosmos3_serve.media.sniff import sniff
from cosmos3_serve.media.video import read_video
from cosmos3_serve.reasoner.engine.model_shape import ModelShape, read_shape

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "h200"))

import cells
import gpu_trace
import pack
import random_reasoner
import run
import workload
from double_engine import Engine
from load import Answer, Client, in_sessions, in_turn
from support import clips
from variants import VARIANTS
from workload import Job, Turns, affinity, round_robin

TOKENS = 4


# ---- the workload ----------------------------------------------------------------------------------------------------


def test_one_of_twenty_and_eight_of_twenty_are_cold() -> None:
    for jobs, mix in (
        ([j for group in affinity(3) for j in group], workload.AFFINITY),
        (round_robin(16), workload.ROUND_ROBIN),
    ):
        cold, of = workload.SHARES[mix]
        assert sum(job.cold for job in jobs) * of == cold * len(jobs), mix
    with pytest.raises(ValueError, match="multiple of 4"):
        round_robin(6)


def test_turns_of_a_session_come_in_order_and_one_at_a_time() -> None:
    jobs = round_robin(8)
    turns, running, taken = Turns(jobs), [], []
    while turns.left or running:
        while len(running) < 3 and (job := turns.take()) is not None:
            assert job.session not in {other.session for other in running}
            running.append(job)
            taken.append(job)
        turns.done(running.pop(0))
    assert Counter(taken) == Counter(jobs)
    for session in {job.session for job in jobs}:
        order = [job.turn for job in taken if job.session == session]
        assert order == sorted(order)


def test_another_clip_is_the_same_film_with_another_hash(tmp_path: Path) -> None:
    clip = clips.clip(frames=12)
    others = [workload.another(clip, number, 1) for number in range(3)]
    assert len({hashlib.sha256(data).digest() for data in (clip, *others)}) == 4
    assert workload.another(clip, 1, 1) == others[1]
    facts = []
    for number, data in enumerate((clip, others[0])):
        path = tmp_path / f"{number}.mp4"
        path.write_bytes(data)
        said = read_video(path, sniff(data[:4096]), ReadLimits())
        facts.append({name: getattr(said, name) for name in ("frames", "width", "height") if hasattr(said, name)})
    assert facts[0] == facts[1] and facts[0]


def test_a_question_asks_for_an_exact_number_of_tokens() -> None:
    said = json.loads(workload.body("m", b"clip", "why?", 128))
    assert said["max_tokens"] == 128 and said["ignore_eos"] and said["stream_options"] == {"include_usage": True}
    assert json.loads(workload.text_body("m", "why?", 128))["messages"][0]["content"] == "why?"


# ---- cells against the double ----------------------------------------------------------------------------------------


@asynccontextmanager
async def engine(**options: Any) -> AsyncIterator[tuple[Engine, Client]]:
    """The double on a free port, asked without a gateway: `named` bodies carry a uuid."""
    double = Engine(0.01, 0.0, 0.0, **options)
    runner = web.AppRunner(double.app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with Client(f"http://127.0.0.1:{port}", {}) as client:
            yield double, client
    finally:
        await runner.cleanup()


def named(job: Job) -> bytes:
    said = json.loads(workload.body("m", b"clip", workload.question(job.session, job.turn), TOKENS))
    said["messages"][0]["content"][0]["uuid"] = f"video-{job.session}"
    return json.dumps(said).encode()


def told(double: Engine) -> dict[str, float]:
    return {f"vllm:{name}": float(value) for name, value in double.counts.items()}


@pytest.mark.parametrize("mix", [workload.AFFINITY, workload.ROUND_ROBIN])
async def test_a_valid_cell_has_figures(mix: str) -> None:
    async with engine() as (double, client):
        if mix == workload.AFFINITY:
            answers = await in_sessions(client, affinity(2), named, 2)
        else:
            answers = await in_turn(client, round_robin(8), named, 2)
        cold = {workload.AFFINITY: 2, workload.ROUND_ROBIN: 8}[mix]
        cells.check(mix, answers, told(double), cold=cold, tokens=TOKENS)
        found = cells.summary(answers, 2.0, told(double), gpus=2)
    assert found["req_s"] == len(answers) / 2 and found["req_s_per_gpu"] == len(answers) / 4
    assert found["cold_ttft_p50"] >= 10 > 0 < found["warm_ttft_p50"]
    assert {"queue_mean", "prefill_mean", "decode_mean", "front_mean"} <= found.keys()


async def test_an_engine_that_loses_tokens_is_refused() -> None:
    async with engine(lose=7) as (double, client):
        answers = await in_sessions(client, affinity(1), named, 1)
        with pytest.raises(InvalidRun, match=r"answers of .* tokens, not 4"):
            cells.check("x", answers, told(double), cold=1, tokens=TOKENS)


async def test_an_engine_that_answers_an_error_is_refused() -> None:
    async with engine() as (double, client):
        unknown = json.loads(named(Job(0, 0)))
        unknown["messages"][0]["content"][0]["video_url"] = None
        answer = await client.ask(json.dumps(unknown).encode())
        answer.turn = 0
        with pytest.raises(InvalidRun, match=r"1 of 1 failed.*HTTP 400.*Cache miss"):
            cells.check("x", [answer], told(double), cold=1, tokens=TOKENS)


def answers_like(cached: list[int]) -> list[Answer]:
    return [
        Answer(turn=turn, ttft_s=0.1, total_s=0.2, itl_s=0.001, tokens=TOKENS, prompt=1000, cached=hit)
        for turn, hit in enumerate(cached)
    ]


GOOD = {
    "vllm:request_success_total": 3.0, "vllm:generation_tokens_total": 12.0, "vllm:mm_cache_queries_total": 3.0,
    "vllm:mm_cache_hits_total": 2.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("cached", "counted", "why"),
    [
        ([990, 990, 990], {}, "first questions found their prompt"),
        ([0, 990, 500], {}, "later questions found too little"),
        ([0, 990, 990], {"vllm:request_success_total": 4.0}, "3 answers, but the engines counted 4"),
        ([0, 990, 990], {"vllm:generation_tokens_total": 11.0}, "made 11 tokens, not 12"),
        ([0, 990, 990], {"vllm:mm_cache_hits_total": 1.0}, "processed 2 videos, not 1"),
        ([0, 990, 990], {"vllm:mm_cache_hits_total": 3.0}, "processed 0 videos, not 1"),
    ],
)
def test_a_mix_that_was_not_as_intended_is_refused(cached: list[int], counted: dict[str, float], why: str) -> None:
    cells.check("x", answers_like([0, 990, 990]), GOOD, cold=1, tokens=TOKENS)
    with pytest.raises(InvalidRun, match=why):
        cells.check("x", answers_like(cached), GOOD | counted, cold=1, tokens=TOKENS)
    with pytest.raises(InvalidRun, match="1 first questions, not 2"):
        cells.check("x", answers_like([0, 990, 990]), GOOD, cold=2, tokens=TOKENS)


def test_metrics_are_summed_over_labels_without_buckets() -> None:
    text = (
        '# HELP x y\nvllm:a_total{engine="0"} 2.0\nvllm:a_total{engine="1"} 3.0\n'
        'vllm:b_bucket{le="1"} 9\nvllm:c NaN\nother 1\n'
    )
    assert cells.counts(text) == {"vllm:a_total": 5.0}
    assert cells.grown({"vllm:a_total": 1.0}, {"vllm:a_total": 5.0, "vllm:d": 2.0}) == {
        "vllm:a_total": 4.0,
        "vllm:d": 2.0,
    }


# ---- the trace -------------------------------------------------------------------------------------------------------


def test_a_decode_step_is_taken_apart() -> None:
    events: list[dict[str, Any]] = []
    for step in range(20):
        at = step * 100.0
        for name, begin, took in (
            ("void cutlass::device_kernel<vllm::cutlass_3x_gemm>", 0, 30),
            ("void cutlass::device_kernel<flash::FlashAttnFwdSm90>", 30, 20),
            ("triton_red_fused_cutlass_scaled_mm_silu", 45, 10),
            ("nvjet_sm90", 60, 20),
        ):
            events.append({"name": name, "ts": at + begin, "dur": took, "cat": "kernel"})
    found = gpu_trace.decode_step(events, 20)
    assert (found["step"], found["busy"], found["idle"], found["launches"]) == (100, 75, 25, 4)
    assert found["by_kind"] == {
        "products of the layers": 30, "attention": 20, "compiled: norm, rope, quantise, activation": 10,
        "output head": 20,
    }  # fmt: skip
    with pytest.raises(ValueError, match="no kernel ran 5 times"):
        gpu_trace.decode_step(events, 5)


# ---- the bundle ------------------------------------------------------------------------------------------------------


def test_the_random_reasoner_has_the_full_size(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")  # training one takes minutes
    random_reasoner.make_model(tmp_path, tmp_path)
    shape = read_shape(tmp_path)
    assert shape == ModelShape(max_positions=262_144)
    assert shape.video_tokens(640, 360, 60) == 6600
    said = json.loads((tmp_path / "config.json").read_text())
    assert (said["video_token_id"], said["vision_start_token_id"]) == (151_656, 151_652)


def test_only_the_wanted_card_keeps_its_code() -> None:
    def entry(kind: int, arch: int, payload: bytes) -> bytes:
        head = struct.pack("<HHIQIIHHI", kind, 1, 64, len(payload), 0, 0, 0, 0, arch)
        return head.ljust(64, b"\0") + payload

    inside = entry(2, 90, b"keep" * 4) + entry(2, 100, b"drop" * 4) + entry(1, 90, b"text" * 4)
    library = b"elf" * 5 + pack.FATBIN + struct.pack("<HHQ", 1, 16, len(inside)) + inside + b"end"
    kept = pack.only_sm90(library)
    assert len(kept) == len(library) and b"keep" in kept and b"end" in kept
    assert b"drop" not in kept and b"text" not in kept


def test_what_is_never_imported_is_not_asked_for() -> None:
    asked = (
        "aiohttp>=3.13", "flashinfer-python==0.6", "nvidia-cutlass-dsl[cu13]==4", "apache-tvm-ffi==0.1.9",
        "fastapi[standard]<1,>=0.1", 'av; extra == "audio"',
    )  # fmt: skip
    metadata = "Name: vllm\n" + "".join(f"Requires-Dist: {need}\n" for need in asked)
    assert pack.needs(metadata) == ["aiohttp>=3.13", "fastapi[standard]<1,>=0.1"]


def test_every_lever_says_what_it_should_do() -> None:
    assert VARIANTS["service"].extra == () and not VARIANTS["service"].env, "the service's own arguments, nothing else"
    assert all(variant.predicted for variant in VARIANTS.values())


def ranked(*cells_of: tuple[str, dict[str, Any]]) -> tuple[run.Bench, list[Any]]:
    """A bench that has measured the short cells of these variants and nothing else."""
    bench = run.Bench.__new__(run.Bench)
    bench.raw = []
    for name, more in cells_of:
        for kind, at_once in (("text", 1), ("warm", 1), ("warm", 2), ("cold", 1)):
            turn = 0 if kind == "cold" else 1
            answers = [{"problem": "", "total_s": 0.5, "turn": turn}]
            row = {"variant": name, "kind": kind, "in_flight": at_once, "answers": answers}
            bench.raw.append(row | (more if kind == "warm" and at_once == 2 else {}))
    return bench, [type("Named", (), {"name": name})() for name, _ in cells_of]


def test_a_variant_with_an_invalid_cell_ranks_last() -> None:
    bench, (good, bad) = ranked(("good", {}), ("bad", {"invalid": "the engines processed 2 videos, not 1"}))
    assert bench.rank(good) > 0 == bench.rank(bad)
    bench, (failed,) = ranked(("failed", {"answers": [{"problem": "HTTP 500", "total_s": 0.1, "turn": 1}]}))
    assert bench.rank(failed) == 0


@pytest.mark.parametrize("words", ["exit 1", "exit 0", "echo; exit 0", "echo 'NVIDIA H200, 1, 2 MiB'; exit 9"])
def test_figures_of_an_unknown_card_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidRun, match="the card is unknown"):
        run.card()
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{words}\n")
    tool.chmod(0o755)
    with pytest.raises(InvalidRun, match="the card is unknown"):
        run.card()
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 580.1, 143771 MiB'\n")
    assert run.card() == "NVIDIA H200, 580.1, 143771 MiB"


def test_what_a_run_goes_without_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "card", lambda: "a card")
    bench = run.Bench.__new__(run.Bench)
    bench.dry, bench.clips = False, [b"clip"]
    said = bench.conditions()
    assert "Ray" in said["without"] and "AIPerf" in said["without"] and "both mixes" in said["routing"]
    assert said["card"] == "a card" and said["weights"] == "random"


def test_the_double_runs_alone() -> None:
    async def once() -> Answer:
        async with engine() as (_, client):
            return await client.ask(named(Job(5, 0)))

    answer = asyncio.run(once())
    assert not answer.problem and answer.tokens == TOKENS
