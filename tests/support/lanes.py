"""How pytest-xdist shares the tests among its workers: a file at a time, and a lane at a time of those that start
services.

A service waits half of its life: for processes, time-outs, a killed replica's successor. So two lanes of them run
beside the units. Not more: where three clusters start at once on two cores, Ray gives up waiting for itself.
"""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import Any

# In this order, one worker each; about equally long. vLLM begins one lane and ends the other, and the modules of one
# shared service are neighbours.
LANES = {
    "vllm": (
        "test_reasoner_answers.py",
        "test_reasoner_deaths.py",
        "test_rolling_restart.py",
        "test_ports.py",
        "test_recover.py",
        "test_generator_service.py",
    ),
    "doubles": (
        "test_reasoner_faults.py",
        "test_framework_double.py",
        "test_guardrails.py",
        "test_declared_applications.py",
        "test_wire_compatibility.py",
        "test_quickstart.py",
        "test_golden_eval.py",
        "test_live_check.py",
        "test_generator_faults.py",
    ),
}
ORDER = [name for names in LANES.values() for name in names]
LANE_OF = {name: lane for lane, names in LANES.items() for name in names}


def workers() -> int:
    """For `-n auto`: the two lanes and at least one for the units."""
    return max(len(LANES) + 1, min(os.cpu_count() or 1, 6))


def scope(node_id: str) -> str:
    """What one worker runs in one go."""
    file = node_id.partition("::")[0]
    return LANE_OF.get(PurePosixPath(file).name, file)


def rank(node_id: str) -> int:
    """Lanes begin first: they take longest."""
    name = PurePosixPath(node_id.partition("::")[0]).name
    return ORDER.index(name) if name in LANE_OF else len(ORDER)


def scheduler(config: Any, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

    config.option.loadscopereorder = False  # ours is the order that begins with the longest
    return Lanes(config, log)
