"""The port over a scripted handle: turns, rerun rules, exceptions, replacement. No cluster."""

import asyncio
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from cosmos3_serve.contract.profile import FRAMEWORK_PROFILE
from cosmos3_serve.contract.records import SampleCompute
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.errors import EngineFailed, SampleCode, SampleError, StartRefused
from cosmos3_serve.generator.engines.framework import port as port_module
from cosmos3_serve.generator.engines.framework.port import FrameworkEngine
from cosmos3_serve.generator.engines.job import EngineInfo, EngineJob, EngineResult
from cosmos3_serve.generator.ports import SystemClock
from cosmos3_serve.generator.queue.runner import Flight, Outcome, WaveRunner
from cosmos3_serve.generator.replica.hardware import admit_target
from cosmos3_serve.settings import GeneratorSettings

INFO = EngineInfo(
    engine="framework", revision=FRAMEWORK_PROFILE.revision, backend=FRAMEWORK_PROFILE.backend, checkpoint="c",
    checkpoint_revision="local", checkpoint_digest="d" * 64, weights="random", device="cpu", dtype="bfloat16",
    supported_modes=("text2image",),
)  # fmt: skip


class Upstream:
    """Answers as upstream's deployment: a batch for all calls of one moment, one exception for all of them."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.faults: dict[str, list[Exception]] = {}
        self.up = True
        self.kills = 0
        self.cards: list[dict[str, str]] = []
        self._pending: list[tuple[dict[str, Any], asyncio.Future[Any]]] = []
        self.generate = SimpleNamespace(remote=self._remote)

    async def _remote(self, fields: dict[str, Any]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending.append((fields, future))
        if len(self._pending) == 1:
            asyncio.get_running_loop().call_later(0.01, self._run)
        return await future

    def _run(self) -> None:
        batch, self._pending = self._pending, []
        self.batches.append([fields["name"] for fields, _ in batch])
        faults = [self.faults[f["name"]].pop(0) for f, _ in batch if self.faults.get(f["name"])]
        for fields, future in batch:
            if faults:
                future.set_exception(RayTaskError("generate", "trace", faults[0]).as_instanceof_cause())
            else:
                future.set_result(SimpleNamespace(model_dump=lambda fields=fields, **_: answer(fields)))

    def serving(self) -> bool:
        return self.up

    def name(self) -> str:
        return f"replica-{self.kills}" if self.up else ""

    def devices(self) -> list[dict[str, str]]:
        return self.cards

    def kill(self) -> int:
        self.kills += 1
        return 1


def answer(fields: dict[str, Any]) -> dict[str, Any]:
    prompt = fields.get("prompt") or Path(fields["prompt_path"]).read_text()
    args = {**fields, "prompt": prompt}
    return {"args": args, "status": "success", "outputs": [{"content": {}, "files": ["b/a/vision.jpg"]}]}


def job(name: str, **fields: Any) -> EngineJob:
    sample = SampleOverrides.model_validate({"name": name, "prompt": "p", "num_frames": 1} | fields)
    args = resolve_sample(sample, FRAMEWORK_PROFILE, seed=1).model_dump(mode="json")
    return EngineJob(request_id="b", name=name, output_dir=f"/out/b/{name}", args=args)


def port(upstream: Upstream, root: Path, **options: Any) -> FrameworkEngine:
    settings: dict[str, Any] = {"guarded": False, "limit": 4, "make_overrides": lambda fields: dict(fields)}
    return FrameworkEngine(upstream, upstream, INFO, output_root=root, **(settings | options))


async def fly(engine: FrameworkEngine, *jobs: EngineJob) -> dict[str, Outcome]:
    """A wave as the coordinator flies it."""
    runner = WaveRunner(engine, SystemClock())
    flight = Flight(tuple(job.key for job in jobs))
    return {outcome.job.name: outcome async for outcome in runner.run(jobs, flight, unwanted=lambda _: False)}


H200 = {"name": "NVIDIA H200", "compute_capability": "9.0"}
A100 = {"name": "NVIDIA A100", "compute_capability": "8.0"}


@pytest.mark.parametrize(
    ("cards", "capabilities", "device"),
    [
        ([], (), "cpu"),
        ([H200, H200], ("9.0",), "NVIDIA H200"),
        ([H200, A100], ("8.0", "9.0"), "NVIDIA H200, NVIDIA A100"),
    ],
)
async def test_it_says_what_devices_the_replica_has_once_they_were_admitted(
    tmp_path: Path, cards: list[dict[str, str]], capabilities: tuple[str, ...], device: str
) -> None:
    upstream, asked = Upstream(), list[tuple[str, ...]]()
    upstream.cards = cards
    engine = port(upstream, tmp_path, admit=lambda found: asked.append(tuple(found)))
    info = await engine.info()
    assert (info.capabilities, info.device) == (capabilities, device)
    assert await engine.info() == info and asked == [capabilities], "asked once"


async def test_a_device_that_is_no_target_is_refused_unless_forced(tmp_path: Path) -> None:
    upstream = Upstream()
    upstream.cards = [A100]
    settings = GeneratorSettings.model_validate({"engine": "framework"})
    with pytest.raises(StartRefused) as refused:
        await port(upstream, tmp_path, admit=partial(admit_target, settings)).info()
    assert refused.value.stable_code == "unsupported_gpu"
    forced = settings.model_copy(update={"force_unsupported_gpu": True})
    assert (await port(upstream, tmp_path, admit=partial(admit_target, forced)).info()).capabilities == ("8.0",)


async def test_a_wave_is_one_batch_and_each_record_says_so(tmp_path: Path) -> None:
    upstream = Upstream()
    outcomes = await fly(port(upstream, tmp_path), *(job(name) for name in "abcd"))
    assert upstream.batches == [["a", "b", "c", "d"]]
    waves = [outcomes[name].result for name in "abcd"]
    assert all(isinstance(result, EngineResult) for result in waves)
    records = [result.wave for result in waves if result]
    assert [(r.coalesced, r.inference_batch, r.slot) for r in records] == [(4, 4, i) for i in range(4)]
    assert len({record.inference_id for record in records}) == 1


async def test_what_upstream_refuses_to_mix_is_never_with_it_together(tmp_path: Path) -> None:
    upstream = Upstream()
    outcomes = await fly(port(upstream, tmp_path), job("a", num_steps=5), job("b", num_steps=6), job("c", num_steps=5))
    assert sorted(map(sorted, upstream.batches)) in ([["a", "c"], ["b"]], [["a"], ["b"], ["c"]])
    assert all(outcome.clean for outcome in outcomes.values())


async def test_a_wave_that_raises_is_rerun_once_sample_by_sample(tmp_path: Path) -> None:
    upstream = Upstream()
    blocked = ValueError("Guardrail blocked prompt '/out/b/b': 'secret'")
    upstream.faults = {"b": [blocked, blocked]}
    outcomes = await fly(port(upstream, tmp_path), *(job(name) for name in "abc"))
    assert upstream.batches == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    assert [outcomes[name].error is None for name in "abc"] == [True, False, True]
    error = outcomes["b"].error
    assert error is not None and error.sample_code is SampleCode.GUARDRAIL_BLOCKED
    assert "secret" not in error.detail and "/out" not in error.detail


async def test_a_verdict_alone_is_final_and_a_fault_alone_gets_one_more_try(tmp_path: Path) -> None:
    upstream = Upstream()
    upstream.faults = {"a": [ValueError("Guardrail blocked prompt 'x': 'y'")], "b": [RuntimeError("once")]}
    engine = port(upstream, tmp_path)
    first = await fly(engine, job("a"))
    assert first["a"].error is not None and upstream.batches == [["a"]]
    second = await fly(engine, job("b"))
    assert second["b"].error is None and second["b"].second


async def test_a_dead_worker_is_replaced_and_the_sample_runs_on_the_next(tmp_path: Path) -> None:
    upstream, told = Upstream(), list[str]()
    upstream.faults = {"a": [ActorDiedError()]}
    engine = port(upstream, tmp_path, on_replaced=lambda: told.append("replaced"))
    outcomes = await fly(engine, job("a"))
    assert outcomes["a"].error is None
    assert upstream.kills == 1 and told == ["replaced"]


async def test_upstreams_time_limit_replaces_the_worker_and_is_final_alone(tmp_path: Path) -> None:
    upstream = Upstream()
    upstream.faults = {"a": [TimeoutError(), TimeoutError()]}
    engine = port(upstream, tmp_path)
    outcomes = await fly(engine, job("a"), job("b"))
    await engine.info()  # waits for the replacement
    assert outcomes["b"].error is None, "its neighbour was the slow one"
    assert outcomes["a"].error is not None and outcomes["a"].error.sample_code is SampleCode.DEADLINE_EXCEEDED
    assert upstream.kills == 2
    upstream.faults = {"c": [TimeoutError()]}
    alone = await fly(port(upstream, tmp_path), job("c"))
    assert alone["c"].error is not None and not alone["c"].second


async def test_while_it_is_replaced_calls_wait_and_info_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = Upstream()
    engine = port(upstream, tmp_path)
    upstream.up = False
    replacing = asyncio.create_task(engine.replace())
    await asyncio.sleep(0.02)
    assert engine.replacing
    with pytest.raises(EngineFailed):
        await engine.incarnation()
    monkeypatch.setattr(port_module, "INFO_S", 0.0)
    with pytest.raises(EngineFailed):
        await engine.info()
    call = asyncio.create_task(engine.generate(job("a")))
    await asyncio.sleep(0.05)
    assert not upstream.batches
    upstream.up = True
    await replacing
    age, busy = engine._turns.age_s, engine.busy_s
    assert age is not None and busy is not None and busy < age, "loading is not the batch's time"
    assert (await call).error is None and (await engine.info()).engine == "framework"
    assert await engine.incarnation() == "replica-1"


async def test_what_upstream_checks_by_itself_is_recorded_and_no_decision_claimed(tmp_path: Path) -> None:
    on = await port(Upstream(), tmp_path, guarded=True).generate(job("a"))
    assert on.guardrails["configured"] is True
    assert on.guardrails["checks"] == [{"check": "output.framework", "decision": "upstream"}]
    off = await port(Upstream(), tmp_path).generate(job("a"))
    assert off.guardrails == {
        "configured": False, "applied": False, "checks": [{"check": "output.framework", "decision": "not_run"}]
    }  # fmt: skip


async def test_the_record_names_the_device_and_claims_nothing_about_threads(tmp_path: Path) -> None:
    engine = port(Upstream(), tmp_path)
    info, result = await engine.info(), await engine.generate(job("a"))
    assert result.compute == SampleCompute(device=info.device, dtype="bfloat16") and info.device


async def test_what_upstreams_own_model_refuses_is_the_samples_fault(tmp_path: Path) -> None:
    def refuse(_: Any) -> Any:
        raise ValueError("Invalid vision extension: .gif")

    with pytest.raises(SampleError) as refused:
        await port(Upstream(), tmp_path, make_overrides=refuse).generate(job("a"))
    assert refused.value.sample_code is SampleCode.INPUT_INVALID


async def test_the_canary_learns_what_the_worker_reads(tmp_path: Path) -> None:
    (tmp_path / "nonce").write_text("n0nce")
    upstream = Upstream()
    assert await port(upstream, tmp_path).read_probe("nonce") == "n0nce"
    assert upstream.batches == [["probe"]]


async def test_it_tells_no_steps_and_stops_nothing(tmp_path: Path) -> None:
    engine = port(Upstream(), tmp_path)
    assert await engine.progress() == {}
    await engine.cancel(["b/a"])
