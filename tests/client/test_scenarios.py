"""Seeded scenarios of faults, each looked at by an auditor that shares no code with the client.

Replay one, and see what it does: COSMOS3_FAULT_SEEDS=17 python -m pytest -s tests/client/test_scenarios.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.s3 import LocalS3
from support.scenario import draw
from support.scenario_run import act


def seeds() -> list[int]:
    """`COSMOS3_FAULT_SEEDS`: numbers and ranges, as in 3,17,40-59."""
    found: list[int] = []
    for part in os.environ.get("COSMOS3_FAULT_SEEDS", "0-19").split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def check(seed: int, s3: LocalS3, base: Path) -> None:
    scenario = draw(seed)
    print(scenario)
    again = f"COSMOS3_FAULT_SEEDS={seed} python -m pytest -s tests/client/test_scenarios.py"
    faults = act(scenario, s3, base)
    assert not faults, "\n".join([str(scenario), *faults, f"replay: {again}"])


@pytest.mark.parametrize("seed", seeds())
def test_nothing_false_nothing_lost(seed: int, s3_server: LocalS3, tmp_path: Path) -> None:
    check(seed, s3_server, tmp_path / "w")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 220))
def test_nothing_false_nothing_lost_long_lane(seed: int, s3_server: LocalS3, tmp_path: Path) -> None:
    check(seed, s3_server, tmp_path / "w")


def test_a_seed_says_the_same_again() -> None:
    assert [str(draw(seed)) for seed in range(50)] == [str(draw(seed)) for seed in range(50)]
    assert len({str(draw(seed)).partition(":")[2] for seed in range(50)}) == 50
