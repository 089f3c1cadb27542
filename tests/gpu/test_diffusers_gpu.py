"""The diffusers engine on a CUDA device: runs, and records whether bytes depend on company there.

On a GPU the wave goes through each matrix product as one, and which kernel is picked may depend on its size: equality
of bytes is measured here and never asserted.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.engine import fingerprint, generate, make_engine, make_job

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

PROMPTS = ("a red cube", "a much longer prompt about a robot arm that lifts a green bottle", "dog", "rain")


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return make_engine(tmp_path_factory.mktemp("outputs").resolve(), device="cuda")


def test_info(engine):
    info = engine.info()
    assert info.dtype == "bfloat16" and info.device != "cpu" and info.weights == "random"
    engine.check()


@pytest.mark.parametrize("mode", ["text2image", "text2video"])
def test_alone_and_in_a_wave_of_four(engine, mode, tmp_path, record_property):
    root = engine._root
    fields: dict[str, Any] = {"model_mode": mode, "num_steps": 4}
    if mode == "text2video":
        fields["num_frames"] = 9

    def jobs(request: str) -> list[Any]:
        return [make_job(root, f"s{i}", request_id=request, prompt=p, seed=i, **fields) for i, p in enumerate(PROMPTS)]

    alone = jobs(f"{mode}-alone")
    for job in alone:
        [result] = generate(engine, job)
        assert result.error is None
    again = jobs(f"{mode}-again")
    for job in again:
        generate(engine, job)
    together = jobs(f"{mode}-together")
    assert all(r.error is None and r.wave.inference_batch == 4 for r in generate(engine, *together))
    prints = [[fingerprint(job) for job in group] for group in (alone, again, together)]
    assert prints[0] == prints[1]  # the same alone, twice
    report = {
        "device": engine.info().device,
        "torch": torch.__version__,
        "mode": mode,
        "equal_in_wave": [a == b for a, b in zip(prints[0], prints[2], strict=True)],
    }
    record_property("bytes", json.dumps(report))
    if folder := os.environ.get("OUT"):
        (Path(folder) / f"bytes-{mode}.json").write_text(json.dumps(report, indent=2))


@pytest.mark.parametrize(
    ("call", "batch"),
    [
        pytest.param(1, 1, id="in-a-step"),  # then each sample runs alone
        pytest.param(2, 2, id="while-recording"),  # then the wave goes on without a record
    ],
)
def test_out_of_memory_is_survived(engine, monkeypatch, call, batch):
    real, calls = engine._network.forward, []

    def forward(block: Any) -> Any:
        calls.append(len(block))
        if len(calls) == call:
            torch.empty(1 << 50, device="cuda")  # a real refusal of the allocator
        return real(block)

    monkeypatch.setattr(engine._network, "forward", forward)
    jobs = [make_job(engine._root, f"oom{call}-{i}", prompt="x", seed=i, model_mode="text2image") for i in range(2)]
    results = generate(engine, *jobs)
    assert all(r.error is None and r.wave.inference_batch == batch for r in results)
