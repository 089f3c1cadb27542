"""The canary: ready only after an inference that wrote a picture the ingress can open."""

import asyncio
from pathlib import Path

import pytest
from PIL import Image

from cosmos3_serve.contract.profile import diffusers_profile
from cosmos3_serve.errors import EngineFailed, SampleCode
from cosmos3_serve.generator import canary as module
from cosmos3_serve.generator.canary import Canary
from cosmos3_serve.generator.engines.job import EngineError, EngineJob, EngineResult


class Model:
    """A model replica that sees `root`; `faults` are used up one a try."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.faults: list[str] = []
        self.jobs: list[EngineJob] = []

    async def read_probe(self, name: str) -> str:
        if self.faults and self.faults[0] == "lost":
            raise EngineFailed(self.faults.pop(0))
        return (self.root / name).read_text()

    async def generate(self, job: EngineJob) -> EngineResult:
        self.jobs.append(job)
        fault = self.faults.pop(0) if self.faults else ""
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
def canary(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Canary:
    monkeypatch.setattr(module, "RETRY_S", (0.0,))
    return Canary(model, diffusers_profile("0.42.1"), tmp_path)


async def test_it_passes_once_and_leaves_nothing_behind(canary: Canary, model: Model, tmp_path: Path) -> None:
    assert not canary.inference[0] and not canary.output_root[0]
    await canary.run()
    assert canary.inference[0] and canary.output_root[0] and canary.passed.is_set()
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
    args = model.jobs[0].args
    assert (args["num_steps"], args["resolution"], args["num_frames"]) == (2, "256", 1)


@pytest.mark.parametrize("fault", ["refused", "garbage", "elsewhere", "nothing", "lost"])
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


async def test_after_a_replacement_it_has_to_pass_again(canary: Canary) -> None:
    await canary.run()
    canary.reset("replaced")
    assert canary.inference == (False, "replaced") and not canary.passed.is_set()
    await canary.run()
    assert canary.inference[0]
