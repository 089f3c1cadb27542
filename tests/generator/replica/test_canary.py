"""The canary: ready only after an inference that wrote a picture the ingress can open."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from PIL import Image

from cosmos3_serve.contract.profile import diffusers_profile
from cosmos3_serve.errors import EngineFailed, SampleCode
from cosmos3_serve.generator.engines.job import EngineError, EngineJob, EngineResult
from cosmos3_serve.generator.replica import canary as module
from cosmos3_serve.generator.replica.canary import Canary


class Model:
    """A model replica that sees `root`; `faults` are used up one a try."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.faults: list[str] = []
        self.jobs: list[EngineJob] = []
        self.life = 1
        self.hold: asyncio.Event | None = None

    async def incarnation(self) -> str:
        if self.life < 0:
            raise EngineFailed("the model replica was lost", code="replica_lost")
        if self.hold is not None:
            await self.hold.wait()
        return f"life-{self.life}"

    async def read_probe(self, name: str) -> str:
        if self.faults and self.faults[0] == "lost":
            raise EngineFailed(self.faults.pop(0))
        return (self.root / name).read_text()

    async def generate(self, job: EngineJob) -> EngineResult:
        self.jobs.append(job)
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "replaced":
            self.life += 1
        if fault == "refused":
            error = EngineError(code=SampleCode.ENGINE_FAILED, message="no kernel image", retryable=True)
            return EngineResult(name=job.name, error=error)
        file = Path(job.output_dir) / "vision.jpg"
        file.parent.mkdir(parents=True)
        if fault == "garbage":
            file.write_bytes(b"not a picture")
        elif fault != "elsewhere":
            Image.new("RGB", (16, 16)).save(file)
        files = [] if fault == "nothing" else [str(file.relative_to(self.root))]
        return EngineResult(name=job.name, outputs={"outputs": [{"content": {}, "files": files}]})


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path)


@pytest.fixture
async def canary(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Canary]:
    monkeypatch.setattr(module, "RETRY_S", (0.0,))
    canary = Canary(model, diffusers_profile("0.42.1"), tmp_path)
    yield canary
    await canary.close()


async def test_it_passes_once_and_leaves_nothing_behind(canary: Canary, model: Model, tmp_path: Path) -> None:
    assert not canary.inference[0] and not canary.output_root[0]
    await canary.run()
    assert canary.inference[0] and canary.output_root[0] and canary.passed.is_set()
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
    args = model.jobs[0].args
    assert (args["num_steps"], args["resolution"], args["num_frames"]) == (2, "256", 1)


@pytest.mark.parametrize("fault", ["refused", "garbage", "elsewhere", "nothing", "lost", "replaced"])
async def test_it_tries_again_until_it_passes_and_says_why_meanwhile(
    fault: str, canary: Canary, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.faults = [fault]
    seen: list[tuple[bool, str]] = []

    async def note(_: float) -> None:
        seen.append(canary.inference if fault != "lost" else canary.output_root)

    monkeypatch.setattr(module.asyncio, "sleep", note)
    await canary.run()
    assert len(seen) == 1 and not seen[0][0] and seen[0][1]
    if fault == "refused":
        assert "no kernel image" in seen[0][1]
    assert canary.inference[0] and canary.output_root[0]


async def test_a_model_on_another_disk_is_found_out(canary: Canary, model: Model, tmp_path: Path) -> None:
    model.root = tmp_path / "other"
    task = asyncio.create_task(canary.run())
    for _ in range(50):
        await asyncio.sleep(0.01)
        if "read" in canary.output_root[1] and canary.output_root[1] != "not yet read by the model replica":
            break
    assert not canary.output_root[0] and "cannot read" in canary.output_root[1]
    task.cancel()


async def test_after_a_replacement_it_has_to_pass_again(canary: Canary, model: Model) -> None:
    await canary.run()
    canary.again("replaced")
    assert await canary.verdict() == canary.inference == canary.output_root == (False, "replaced")
    await canary.passed.wait()
    assert (await canary.verdict())[0] and len(model.jobs) == 2


async def test_a_replica_that_serve_replaced_alone_is_noticed_by_the_first_who_asks(
    canary: Canary, model: Model
) -> None:
    await canary.run()
    assert (await canary.verdict())[0] and len(model.jobs) == 1
    model.life = 2  # nobody told the canary
    assert await canary.verdict() == (False, "the model replica was replaced; the canary runs again")
    assert not canary.passed.is_set()
    await canary.passed.wait()
    assert (await canary.verdict())[0] and len(model.jobs) == 2
    assert (await canary.verdict())[0] and len(model.jobs) == 2, "once a replica is enough"


async def test_a_replica_that_is_gone_or_silent_is_not_vouched_for(
    canary: Canary, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.05)
    await canary.run()
    model.life = -1
    assert await canary.verdict() == (False, "the model replica was lost")
    model.life, model.hold = 1, asyncio.Event()
    assert (await canary.verdict()) == (False, "the model replica has not answered for 0.05 s")
    model.hold.set()
    assert (await canary.verdict())[0], "it was only slow"


async def test_it_begins_anew_also_in_the_middle_of_a_try(canary: Canary, model: Model, tmp_path: Path) -> None:
    await canary.run()
    model.hold = asyncio.Event()
    canary.again("first")
    await asyncio.sleep(0)
    canary.again("second")
    model.hold.set()
    await asyncio.wait_for(canary.passed.wait(), 5)
    assert len(model.jobs) == 2 and [p for p in tmp_path.rglob("*") if p.is_file()] == []
