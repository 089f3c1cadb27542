"""kill -9 at seeded points, of one worker and of one of two: the queue ends with every sample generated and published
once, and nothing is acknowledged that is not there."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from support import queue_process
from support.queues import Site, audit

SAMPLES, LIMIT = 60, 10


class Trace(list[Any]):
    """The service's request log; at its n-th request a worker dies."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.left, self.process = threading.Lock(), 0, None

    def arm(self, at: int, process: Any) -> None:
        with self.lock:
            self.left, self.process = at, process

    def append(self, item: Any) -> None:
        super().append(item)
        with self.lock:
            self.left -= 1
            if self.left == 0 and self.process is not None:
                self.process.kill()


def options_of(site: Site) -> dict[str, Any]:
    return {
        "input_path": str(site.lines(SAMPLES)),
        "output_path": str(site.out),
        "endpoints": [site.server.endpoint],
        "lease_s": 3.0,
    }


def environ_of(site: Site, machine: str) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(site.tmp / machine), "NPA_COSMOS3_RAY_TOKEN": site.server.token}


def check_once(site: Site) -> None:
    index = audit(site.out)
    assert (index["status"], index["succeeded"]) == ("completed", SAMPLES)
    assert len(site.server.generated) == SAMPLES
    assert set(site.server.generated.values()) == {1}, "a sample was generated twice"
    assert len(site.server.batches) == SAMPLES // LIMIT


def kill_and_continue(site: Site, seed: int, kills: int) -> None:
    rng, site.server.log = random.Random(seed), Trace()
    options, environ = options_of(site), environ_of(site, "state")
    site.limit(LIMIT)
    for number in range(kills):
        process = queue_process.start(options, environ, site.tmp / "killed.json")
        site.server.log.arm(rng.randint(2, 25), process)  # a whole queue makes about 60 requests
        process.join(60)
        assert process.exitcode is not None, f"the worker hangs, kill {number}"
        assert number or process.exitcode == -9, "the first worker ended before it could be killed"
    site.server.log.arm(0, None)
    process = queue_process.start(options, environ, site.tmp / "last.json")
    process.join(60)
    found = queue_process.outcome(site.tmp / "last.json")
    assert found.get("index"), found
    check_once(site)


@pytest.mark.parametrize("seed", range(3))
def test_killed_anywhere_the_next_worker_goes_on(site: Site, seed: int) -> None:
    kill_and_continue(site, seed, kills=2)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(100, 140))
def test_killed_anywhere_long_lane(site: Site, seed: int) -> None:
    kill_and_continue(site, seed, kills=4)


def test_the_parts_of_a_killed_machine_are_finished_by_the_other(site: Site, tmp_path: Path) -> None:
    """The other one has nothing of the first but the output place."""
    site.server.log = Trace()
    site.server.step_s = 0.01
    site.limit(LIMIT)
    options = options_of(site)
    first = queue_process.start(options, environ_of(site, "machine-a"), tmp_path / "a.json")
    second = queue_process.start(options, environ_of(site, "machine-b"), tmp_path / "b.json")
    site.server.log.arm(12, first)
    first.join(60)
    second.join(90)
    assert not (tmp_path / "a.json").exists(), "the first worker ended before it could be killed"
    assert queue_process.outcome(tmp_path / "b.json").get("index")
    check_once(site)
