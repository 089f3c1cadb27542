"""What the diffusers engine does on CUDA only: the fused norm and the recorded step change speed, not results."""

import threading
from typing import Any

import pytest
from support.engine import generate, latents, make_engine, make_job

torch = pytest.importorskip("torch", reason="torch is not installed")

from cosmos3_serve.generator.engines.diffusers.network import normed  # noqa: E402
from cosmos3_serve.generator.engines.diffusers.replay import Replay  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return make_engine(tmp_path_factory.mktemp("outputs").resolve(), device="cuda")


@pytest.fixture
def records(monkeypatch):
    """What each attempt to record a step came to."""
    made: list[bool] = []
    real = Replay._record

    def record(self: Any) -> bool:
        made.append(real(self))
        return made[-1]

    monkeypatch.setattr(Replay, "_record", record)
    return made


def jobs(engine: Any, request: str, count: int = 3) -> list[Any]:
    fields = {"model_mode": "text2image", "num_steps": 6}
    return [
        make_job(engine._root, f"s{i}", request_id=request, prompt="a cube " * (i + 1), seed=i, **fields)
        for i in range(count)
    ]


def same(left: list[Any], right: list[Any]) -> bool:
    return all(torch.equal(a.latents, b.latents) for a, b in zip(left, right, strict=True))


def plain(engine: Any, monkeypatch: Any, request: str) -> list[Any]:
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_replays", False)
        return latents(engine, *jobs(engine, request))


def test_a_recorded_step_gives_the_same_bytes(engine, monkeypatch, records):
    expected = plain(engine, monkeypatch, "plain")
    assert records == []
    assert same(latents(engine, *jobs(engine, "recorded")), expected)
    assert records == [True]


def test_a_step_that_cannot_be_recorded_runs_as_it_is(engine, monkeypatch, records):
    expected = plain(engine, monkeypatch, "plain-2")
    real, calls = engine._network.forward, []

    def forward(block: Any) -> Any:
        calls.append(torch.cuda.is_current_stream_capturing())
        if calls[-1]:
            torch.cuda.synchronize()  # what no record may hold
        return real(block)

    with monkeypatch.context() as patch:
        patch.setattr(engine._network, "forward", forward)
        assert same(latents(engine, *jobs(engine, "refused")), expected)
    assert records == [False] and calls.count(True) == 1
    torch.cuda.empty_cache()
    assert same(latents(engine, *jobs(engine, "after")), expected)
    assert records == [False, True]  # the device and torch are none the worse


def test_recording_while_another_thread_decodes(engine, monkeypatch, records):
    expected = plain(engine, monkeypatch, "plain-3")
    finished = engine.denoise(jobs(engine, "decoded"), lambda *_: None, lambda key: False)
    stop, results = threading.Event(), []

    def decode() -> None:
        while not stop.is_set():
            results.extend(engine.finish(item) for item in finished)

    thread = threading.Thread(target=decode)
    thread.start()
    try:
        for i in range(10):
            assert same(latents(engine, *jobs(engine, f"beside-{i}")), expected)
    finally:
        stop.set()
        thread.join()
    assert results and all(result.error is None for result in results)


def test_recording_leaves_room_for_the_next_shape(engine, records):
    for count in (1, 3, 2):
        assert all(result.error is None for result in generate(engine, *jobs(engine, f"shape-{count}", count)))
    assert records == [True, True, True]


@pytest.mark.parametrize("shape", [(1000, 4096), (300, 8, 128)])
def test_the_fused_norm_is_no_less_exact_than_the_module(shape):
    from diffusers.models.normalization import RMSNorm

    torch.manual_seed(0)
    norm = RMSNorm(shape[-1], eps=1e-6).to("cuda", torch.bfloat16)
    torch.nn.init.uniform_(norm.weight, 0.5, 2.0)
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16) * 3
    wide = x.double()
    exact = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * norm.weight.double()

    def distance(value: Any) -> float:
        return float((value.double() - exact).norm() / exact.norm())

    with torch.inference_mode():
        fused, stock = normed(norm, x), norm(x)
    assert fused.dtype == stock.dtype == torch.bfloat16
    assert distance(fused) <= distance(stock) < 1e-2
