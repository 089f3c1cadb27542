"""A small batch, killed at every request and every change on disk, and met by a second client at every request.

`make test` takes some of the points, the long lane all.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import pytest
from support.local_faults import LocalFaults
from support.s3 import LocalS3
from support.scenario import Rival, Run, Scenario, small
from support.scenario_run import World, act

FEW = 12  # in `make test`: every so many points
Store = Literal["s3", "folder"]


def whole(s3: LocalS3, base: Path, store: Store, **changes: Any) -> tuple[int, int]:
    """How many requests and changes on disk a run makes that nobody disturbs."""
    scenario = small(store, **changes)
    with World(scenario, s3, base) as world:
        world.turn(world.clients[0], Run(), scenario.request_id, "undisturbed", allow_partial=False)
        found = world.clients[0].outcomes[-1]
        assert "manifest" in found, found
        assert not [*world.auditor.faults, *world.problems]
        return world.clients[0].wire.steps, found["changes"]


def sweep(scenarios: Iterable[Scenario], s3: LocalS3, base: Path) -> None:
    faults = []
    for number, scenario in enumerate(scenarios):
        faults += [f"{scenario}: {fault}" for fault in act(scenario, s3, base / str(number))]
    assert not faults, "\n".join(faults)


def kill_at_requests(s3: LocalS3, base: Path, store: Store, every: int) -> None:
    requests, _ = whole(s3, base / "whole", store)
    assert requests > (20 if store == "s3" else 6)
    points = [Run(die_at=at, die_after=after) for at in range(1, requests + 1) for after in (False, True)]
    sweep((small(store, run=run) for run in points[::every]), s3, base)


def kill_at_changes(s3: LocalS3, base: Path, store: Store, every: int) -> None:
    _, changes = whole(s3, base / "whole", store)
    assert changes > 30
    points = range(1, changes + 1, every)
    sweep((small(store, run=Run(local=LocalFaults(die_at=at))) for at in points), s3, base)


def second_client(s3: LocalS3, base: Path, how: Literal["same", "other"], every: int) -> None:
    """The second one wants a partial publication where the first wants all: a sample fails once."""
    requests, _ = whole(s3, base / "whole", "s3")
    rivals = (Rival(at, how, allow_partial=how == "same") for at in range(2, requests + 1, every))
    sweep((small("s3", rival=rival, interrupted=("x",)) for rival in rivals), s3, base)


@pytest.mark.parametrize("store", ["s3", "folder"])
def test_killed_at_some_requests(s3_server: LocalS3, tmp_path: Path, store: Store) -> None:
    kill_at_requests(s3_server, tmp_path, store, 2 * FEW + 1)


def test_killed_at_some_changes_on_disk(s3_server: LocalS3, tmp_path: Path) -> None:
    kill_at_changes(s3_server, tmp_path, "folder", 2 * FEW)


@pytest.mark.parametrize("how", ["same", "other"])
def test_met_by_a_second_client_at_some_requests(
    s3_server: LocalS3, tmp_path: Path, how: Literal["same", "other"]
) -> None:
    second_client(s3_server, tmp_path, how, FEW)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("store", ["s3", "folder"])
def test_killed_at_every_request(s3_server: LocalS3, tmp_path: Path, store: Store) -> None:
    kill_at_requests(s3_server, tmp_path, store, 1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("store", ["s3", "folder"])
def test_killed_at_every_change_on_disk(s3_server: LocalS3, tmp_path: Path, store: Store) -> None:
    kill_at_changes(s3_server, tmp_path, store, 1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("how", ["same", "other"])
def test_met_by_a_second_client_at_every_request(
    s3_server: LocalS3, tmp_path: Path, how: Literal["same", "other"]
) -> None:
    second_client(s3_server, tmp_path, how, 1)
