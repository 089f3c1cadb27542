"""The loop over a wave with a scripted network: progress, cancellation, failure, out of memory. No model is loaded."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.engines.diffusers.wave import Seat, Wave, is_out_of_memory
from cosmos3_serve.generator.engines.job import EngineJob


@dataclass
class FakeRun:
    """Counts steps; its "latents" are the steps it took, its strands its own name."""

    job: EngineJob
    total_steps: int
    shape: Any = "same"
    fails_at: dict[int, Exception] = field(default_factory=dict)
    steps_done: int = 0
    prompt_decision: str = "passed"

    @property
    def current(self) -> "FakeRun":
        return self

    @property
    def done(self) -> bool:
        return self.steps_done >= self.total_steps

    def strands(self) -> list[str]:
        return [self.job.name, self.job.name]

    def advance(self, hidden: list[str]) -> None:
        assert hidden == [f"<{self.job.name}>"] * 2  # its own rows and nobody else's
        if error := self.fails_at.get(self.steps_done):
            raise error
        self.steps_done += 1

    def result(self) -> str:
        return f"{self.job.name}:{self.steps_done}"


class BatchService:
    """A wave over fakes, with knobs for what goes wrong."""

    def __init__(self, packing: str = "wave") -> None:
        self.packing = packing
        self.blocks: list[list[str]] = []
        self.progress: list[tuple[str, int, int]] = []
        self.prepared: Counter[str] = Counter()
        self.cancelled: set[str] = set()
        self.steps = 3
        self.runs: dict[str, dict[str, Any]] = {}
        self.on_forward = lambda block: None
        self.on_prepare = lambda name, nth: None

    def forward(self, block: list[str]) -> list[str]:
        self.on_forward(block)
        self.blocks.append(block)
        return [f"<{name}>" for name in block]

    def prefill(self, ids: Any) -> Any:
        return ids

    def prepare(self, job: EngineJob, prefixes: Any) -> Any:
        self.prepared[job.name] += 1
        self.on_prepare(job.name, self.prepared[job.name])
        return FakeRun(job, **{"total_steps": self.steps, **self.runs.get(job.name, {})})

    def step(self, *progress: Any) -> None:
        self.progress.append(progress)

    def denoise(self, names: str) -> dict[str, Seat]:
        wave = Wave(self, self.prepare, self.packing, self.step, lambda key: key in self.cancelled)  # type: ignore[arg-type]
        jobs = [EngineJob(request_id="r", name=name, output_dir=f"/o/{name}", args={}) for name in names]
        return dict(zip(names, wave.denoise(jobs), strict=True))


def outcome(seats: dict[str, Seat]) -> dict[str, Any]:
    return {n: s.error.sample_code.value if s.error else s.latents for n, s in seats.items()}


OOM = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


def test_a_wave_is_one_block_a_step_and_reports_every_step():
    batches = BatchService()
    seats = batches.denoise("abcd")
    assert outcome(seats) == {n: f"{n}:3" for n in "abcd"}
    assert batches.blocks == [["a", "a", "b", "b", "c", "c", "d", "d"]] * 3
    assert batches.progress == [(f"r/{n}", i, 3) for i in (1, 2, 3) for n in "abcd"]
    assert [s.wave.slot for s in seats.values()] == [0, 1, 2, 3]
    assert {s.wave.inference_batch for s in seats.values()} == {4}
    assert len({s.wave.inference_id for s in seats.values()}) == 1
    assert all(s.run is None for s in seats.values())  # keys and values are let go


def test_kept_apart_each_sample_is_its_own_block():
    batches = BatchService("sample")
    batches.denoise("ab")
    assert batches.blocks == [["a", "a"], ["b", "b"]] * 3


def test_samples_of_fewer_steps_leave_early():
    batches = BatchService()
    batches.runs = {"b": {"total_steps": 1}}
    assert outcome(batches.denoise("ab")) == {"a": "a:3", "b": "b:1"}
    assert batches.blocks == [["a", "a", "b", "b"], ["a", "a"], ["a", "a"]]


@pytest.mark.parametrize("shapes, mixed", [(("x", "x"), False), (("x", "y"), True)])
def test_mixed_shapes_are_recorded(shapes, mixed):
    batches = BatchService()
    batches.runs = {"a": {"shape": shapes[0]}, "b": {"shape": shapes[1]}}
    assert {s.wave.mixed_shapes for s in batches.denoise("ab").values()} == {mixed}


# ---- cancellation ---------------------------------------------------------------------------------------------------


def test_cancelled_before_the_start_is_never_prepared():
    batches = BatchService()
    batches.cancelled = {"r/b"}
    seats = batches.denoise("abc")
    assert outcome(seats) == {"a": "a:3", "b": "cancelled", "c": "c:3"}
    assert batches.prepared == {"a": 1, "c": 1}
    assert [seats[n].wave.inference_batch for n in "ac"] == [2, 2]


def test_cancelled_in_the_middle_leaves_before_the_next_step():
    batches = BatchService()

    def cancel(block: list[str]) -> None:
        if len(batches.blocks) == 1:
            batches.cancelled.add("r/b")

    batches.on_forward = cancel
    assert outcome(batches.denoise("abc")) == {"a": "a:3", "b": "cancelled", "c": "c:3"}
    assert [len(block) for block in batches.blocks] == [6, 6, 4]
    assert ("r/b", 2, 3) in batches.progress and ("r/b", 3, 3) not in batches.progress


def test_everyone_cancelled_ends_the_wave():
    batches = BatchService()
    batches.on_forward = lambda block: batches.cancelled.update({"r/a", "r/b"})
    assert outcome(batches.denoise("ab")) == {"a": "cancelled", "b": "cancelled"}
    assert len(batches.blocks) == 1


# ---- one sample's failure -------------------------------------------------------------------------------------------


def test_bad_input_fails_alone():
    batches = BatchService()

    def bad(name: str, nth: int) -> None:
        if name == "b":
            raise SampleError(SampleCode.INPUT_INVALID, "vision_path: the file is no image")

    batches.on_prepare = bad
    seats = batches.denoise("abc")
    assert outcome(seats) == {"a": "a:3", "b": "input_invalid", "c": "c:3"}
    assert batches.blocks[0] == ["a", "a", "c", "c"]


def test_a_bug_in_preparation_fails_alone_and_tells_no_secrets(caplog):
    batches = BatchService()

    def bug(name: str, nth: int) -> None:
        if name == "a":
            raise RuntimeError("/secret/path token=abc")

    batches.on_prepare = bug
    seats = batches.denoise("ab")
    assert outcome(seats) == {"a": "engine_failed", "b": "b:3"}
    assert "secret" not in seats["a"].error.detail and "RuntimeError" in seats["a"].error.detail


def test_failure_between_steps_fails_alone():
    batches = BatchService()
    batches.runs = {"b": {"fails_at": {1: SampleError(SampleCode.OUTPUT_INVALID, "no numbers")}}}
    assert outcome(batches.denoise("ab")) == {"a": "a:3", "b": "output_invalid"}
    assert batches.prepared["a"] == 1


# ---- the wave's failure ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [OOM, RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), MemoryError()]
)
def test_out_of_memory_together_succeeds_one_by_one(error):
    batches = BatchService()

    def crowded(block: list[str]) -> None:
        if len(block) > 2 and batches.blocks:
            raise error

    batches.on_forward = crowded
    seats = batches.denoise("abc")
    assert outcome(seats) == {n: f"{n}:3" for n in "abc"}
    assert batches.prepared == {"a": 2, "b": 2, "c": 2}  # each again from its seed
    assert {s.wave.inference_batch for s in seats.values()} == {1}
    assert {s.wave.slot for s in seats.values()} == {0}


def test_memory_is_freed_before_anyone_runs_again(monkeypatch):
    events: list[str] = []
    monkeypatch.setattr("cosmos3_serve.generator.engines.diffusers.wave.free_memory", lambda: events.append("free"))
    batches = BatchService()

    def crowded(block: list[str]) -> None:
        events.append("forward")
        if len(block) > 2:
            raise OOM

    batches.on_forward = crowded
    batches.steps = 1
    batches.denoise("ab")
    assert events == ["forward", "free", "forward", "free", "forward"]


def test_who_does_not_fit_alone_is_told_so_and_the_next_wave_runs():
    batches = BatchService()

    def large(block: list[str]) -> None:
        if "b" in block:
            raise OOM

    batches.on_forward = large
    seats = batches.denoise("abc")
    assert outcome(seats) == {"a": "a:3", "b": "out_of_memory", "c": "c:3"}
    assert "smaller" in seats["b"].error.detail
    assert outcome(batches.denoise("ac")) == {"a": "a:3", "c": "c:3"}


def test_a_single_sample_gets_a_second_chance_with_free_memory():
    batches = BatchService()
    errors = [OOM]

    def once(block: list[str]) -> None:
        if errors:
            raise errors.pop()

    batches.on_forward = once
    assert outcome(batches.denoise("a")) == {"a": "a:3"}


def test_out_of_memory_in_preparation_is_tried_again_once():
    batches = BatchService()

    def tight(name: str, nth: int) -> None:
        if (name == "a" and nth == 1) or name == "b":
            raise OOM

    batches.on_prepare = tight
    assert outcome(batches.denoise("abc")) == {"a": "a:3", "b": "out_of_memory", "c": "c:3"}
    assert batches.prepared == {"a": 2, "b": 2, "c": 1}


def test_out_of_memory_between_chunks_is_run_again_alone():
    batches = BatchService()
    batches.runs = {"b": {"fails_at": {1: OOM}}}
    made = {"n": 0}

    def heal(name: str, nth: int) -> None:
        if name == "b" and nth == 2:
            batches.runs = {}
            made["n"] += 1

    batches.on_prepare = heal
    assert outcome(batches.denoise("ab")) == {"a": "a:3", "b": "b:3"}
    assert made["n"] == 1


def test_a_poisonous_sample_is_found_by_running_each_alone():
    batches = BatchService()

    def poison(block: list[str]) -> None:
        if "c" in block and len(batches.blocks) >= 1:
            raise RuntimeError("device-side assert")

    batches.on_forward = poison
    assert outcome(batches.denoise("abcd")) == {"a": "a:3", "b": "b:3", "c": "engine_failed", "d": "d:3"}


def test_cancelled_while_waiting_for_the_second_run():
    batches = BatchService()

    def crowded(block: list[str]) -> None:
        if len(block) > 2:
            batches.cancelled.add("r/b")
            raise OOM

    batches.on_forward = crowded
    assert outcome(batches.denoise("ab")) == {"a": "a:3", "b": "cancelled"}


@pytest.mark.parametrize(
    "error, is_oom",
    [(OOM, True), (MemoryError(), True), (RuntimeError("CUDA error: out of memory"), True),
     (RuntimeError("shape mismatch"), False), (ValueError("out of memory"), False)],
)  # fmt: skip
def test_what_counts_as_out_of_memory(error, is_oom):
    assert is_out_of_memory(error) is is_oom
