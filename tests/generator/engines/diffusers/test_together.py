"""Samples share products where that changes no bit, over networks that round as they are told."""

import pytest
import torch

from cosmos3_serve.generator.engines.diffusers import together as module
from cosmos3_serve.generator.engines.diffusers.network import Place, Prefix, Strand
from cosmos3_serve.generator.engines.diffusers.together import Proven


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def strand(rows: int, value: float = 1.0) -> Strand:
    nothing = torch.zeros(0)
    return Strand(torch.full((rows, 2), value), Place(nothing, nothing), Prefix((), 0))


class Rounding:
    """Doubles its rows; with `off`, what goes through together comes out a little different."""

    def __init__(self, off: float = 0.0) -> None:
        self.off = off
        self.blocks: list[list[int]] = []

    def forward(self, block):
        self.blocks.append([len(s.rows) for s in block])
        return [s.rows * 2 + (self.off if len(block) > 2 else 0.0) for s in block]


def values(rows) -> list[list[float]]:
    return [[float(r[0, 0]) for r in own] for own in rows]


PAIR = [[strand(4, 1.0), strand(4, 2.0)], [strand(4, 3.0), strand(4, 4.0)]]
APART, TOGETHER = [[4, 4], [4, 4]], [[4, 4, 4, 4]]


def test_the_first_step_of_a_layout_is_the_proof_and_the_next_ones_go_together():
    network = Rounding()
    proven = Proven(network)  # type: ignore[arg-type]
    for expected in (APART + TOGETHER, TOGETHER, TOGETHER):
        network.blocks.clear()
        assert values(proven.forward(PAIR)) == [[2.0, 4.0], [6.0, 8.0]]
        assert network.blocks == expected


def test_what_would_round_differently_goes_one_by_one_and_the_log_says_so(caplog):
    network = Rounding(off=1e-3)
    proven = Proven(network)  # type: ignore[arg-type]
    for expected in (APART + TOGETHER, APART, APART):
        network.blocks.clear()
        assert values(proven.forward(PAIR)) == [[2.0, 4.0], [6.0, 8.0]]
        assert network.blocks == expected
    assert caplog.text.count("round differently") == 1


def test_each_layout_and_each_count_is_proved_by_itself():
    network = Rounding()
    proven = Proven(network)  # type: ignore[arg-type]
    proven.forward(PAIR)
    for strands, proved in (
        (PAIR, False),
        ([*PAIR, [strand(4), strand(4)]], True),
        ([[strand(5)], [strand(5)]], True),
        ([[strand(5)], [strand(5)]], False),
    ):
        network.blocks.clear()
        proven.forward(strands)
        assert (len(network.blocks) > 1) is proved, network.blocks


def test_in_a_mixed_wave_those_of_one_layout_go_together_and_rows_keep_their_order():
    network = Rounding()
    proven = Proven(network)  # type: ignore[arg-type]
    mixed = [[strand(4, 1.0)], [strand(7, 2.0)], [strand(4, 3.0)], [strand(9, 4.0)]]
    for _ in range(2):
        network.blocks.clear()
        assert values(proven.forward(mixed)) == [[2.0], [4.0], [6.0], [8.0]]
    assert network.blocks == [[4, 4], [7], [9]]


def test_with_several_threads_nobody_shares():
    network = Rounding()
    proven = Proven(network)  # type: ignore[arg-type]
    torch.set_num_threads(2)
    for _ in range(2):
        network.blocks.clear()
        assert values(proven.forward(PAIR)) == [[2.0, 4.0], [6.0, 8.0]]
        assert network.blocks == APART
    assert proven._same == {}


def test_one_sample_needs_no_proof_and_the_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_KINDS", 3)
    network = Rounding()
    proven = Proven(network)  # type: ignore[arg-type]
    proven.forward([[strand(4)]])
    assert network.blocks == [[4]] and proven._same == {}
    for n in range(10):
        proven.forward([[strand(n + 1)], [strand(n + 1)]])
    assert len(proven._same) == 3
