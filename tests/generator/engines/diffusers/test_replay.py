"""When a step is recorded, when it is replayed, and when it runs as it is. Real graphs: tests/gpu."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cosmos3_serve.generator.engines.diffusers import replay as module
from cosmos3_serve.generator.engines.diffusers.codec import Codec
from cosmos3_serve.generator.engines.diffusers.network import Place, Prefix, Strand
from cosmos3_serve.generator.engines.diffusers.replay import Replay


class FakeNetwork:
    def __init__(self) -> None:
        self.calls = 0
        self.recording = False
        self.breaks = False

    def forward(self, block: Any) -> list[torch.Tensor]:
        self.calls += 1
        if self.recording and self.breaks:
            raise RuntimeError("not while recording")
        return [strand.rows * 2 for strand in block]


@pytest.fixture
def world(monkeypatch):
    """A CUDA that records by remembering nothing and replays by counting."""
    network, seen = FakeNetwork(), SimpleNamespace(replays=0, alone=True, free=1 << 40, stream=None)

    class Graph:
        def replay(self) -> None:
            seen.replays += 1

    @contextmanager
    def graph(_graph: Any, **_options: Any) -> Any:
        network.recording = True
        try:
            yield
        finally:
            network.recording = False

    fake = SimpleNamespace(
        CUDAGraph=Graph,
        graph=graph,
        current_stream=lambda: "stream",
        set_stream=lambda stream: setattr(seen, "stream", stream),
        mem_get_info=lambda: (seen.free, 1 << 40),
        memory_reserved=lambda: 0,
        memory_allocated=lambda: 0,
    )
    monkeypatch.setattr(module.torch, "cuda", fake)

    @contextmanager
    def quiet() -> Any:
        yield seen.alone

    return Replay(network, quiet), network, seen  # type: ignore[arg-type]


def strand(rows: int = 4) -> Strand:
    return Strand(torch.ones(rows, 2), Place(torch.ones(1), torch.ones(1)), Prefix((), 1))


def test_first_as_it_is_then_recorded_then_replayed(world):
    replay, network, seen = world
    block = [strand()]
    for _ in range(4):
        [out] = replay.forward(block)
        assert out.tolist() == (block[0].rows * 2).tolist()
    assert (network.calls, seen.replays) == (2, 3)


def test_other_strands_make_a_new_record(world):
    replay, network, seen = world
    first, second = [strand()], [strand()]
    for block in (first, first, second, second, first):
        replay.forward(block)
    assert (network.calls, seen.replays) == (5, 2)


def test_many_rows_run_as_they_are(world):
    replay, network, seen = world
    block = [strand(module.MAX_ROWS + 1)]
    for _ in range(3):
        replay.forward(block)
    assert (network.calls, seen.replays) == (3, 0)


@pytest.mark.parametrize("hindrance", [{"alone": False}, {"free": 0}])
def test_a_hindrance_is_waited_out(world, hindrance):
    replay, network, seen = world
    block = [strand()]
    before = {name: getattr(seen, name) for name in hindrance}
    vars(seen).update(hindrance)
    for _ in range(3):
        replay.forward(block)
    assert (network.calls, seen.replays) == (3, 0)
    vars(seen).update(before)
    replay.forward(block)
    assert seen.replays == 1


def test_a_failed_record_is_not_tried_again(world):
    replay, network, seen = world
    network.breaks = True
    block = [strand()]
    for _ in range(4):
        [out] = replay.forward(block)
        assert out.tolist() == (block[0].rows * 2).tolist()
    assert network.calls == 5  # four steps and the one attempt
    assert seen.replays == 0 and seen.stream == "stream"


@pytest.mark.parametrize("busy", ["_encoding", "_decoding"])
def test_the_codec_is_quiet_only_when_nothing_runs(busy):
    config = SimpleNamespace(latents_mean=[0.0], latents_std=[1.0])
    codec = Codec(SimpleNamespace(dtype=torch.float32, config=config), torch.device("cpu"))
    with getattr(codec, busy), codec.quiet() as alone:
        assert not alone
    with codec.quiet() as alone:
        assert alone and codec._encoding.locked() and codec._decoding.locked()
    assert not codec._encoding.locked() and not codec._decoding.locked()
