"""How pytest-xdist shares the tests among its workers: a file at a time, and a lane at a time of those that start
services.

A service waits half of its life: for processes, time-outs, a killed replica's successor. So there are two lanes of
them, and units beside them in what they leave of the machine. Not more lanes: where three clusters start at once on two
cores, Ray gives up waiting for itself.
"""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import Any

# In this order, one worker each. vLLM begins one lane and comes late in the other, and the modules of one shared
# service are neighbours.
LANES = {
    "vllm": (
        "e2e/test_reasoner_answers.py",
        "e2e/test_reasoner_surface.py",
        "e2e/test_reasoner_deaths.py",
        "e2e/test_wire_compatibility.py",
        "e2e/test_ports.py",
        "e2e/test_recover.py",
        "e2e/test_openai_client.py",
        "e2e/test_generator_service.py",
        "e2e/test_declared_applications.py",
        "e2e/test_guardrails.py",
        "e2e/test_golden_eval.py",
        "e2e/test_live_check.py",
        "e2e/test_framework_double.py",
    ),
    "doubles": (
        "e2e/test_reasoner_faults.py",
        "e2e/test_rolling_restart.py",
        "e2e/test_scaling.py",
        "e2e/test_shared_cluster.py",
        "e2e/test_lost_node.py",
        "e2e/test_quickstart.py",
        "e2e/test_reasoner_quality.py",
        "faults/test_generator_faults.py",
        "faults/test_generator_restart.py",
    ),
}
UNITS_NICE = 5  # a third of the time of one who competes at 0
ORDER = [name for names in LANES.values() for name in names]
LANE_OF = {name: lane for lane, names in LANES.items() for name in names}


def workers() -> int:
    """For `-n auto`: one a core, and on few cores one a lane and one for units."""
    return max(len(LANES) + 1, min(os.cpu_count() or 1, 6))


def give_way(first: str) -> None:
    """A worker whose first test is a unit, and with it whatever its tests start, yields to the lanes: what they tell
    about time is then of services, not of a third that takes their cores."""
    if _place(first.partition("::")[0]) not in LANE_OF:
        os.nice(UNITS_NICE)


def scope(node_id: str) -> str:
    """What one worker runs in one go."""
    file = node_id.partition("::")[0]
    return LANE_OF.get(_place(file), file)


def rank(node_id: str) -> int:
    """Lanes begin first: they take longest."""
    place = _place(node_id.partition("::")[0])
    return ORDER.index(place) if place in LANE_OF else len(ORDER)


def _place(file: str) -> str:
    """Folder and name."""
    return "/".join(PurePosixPath(file).parts[-2:])


def scheduler(config: Any, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

    config.option.loadscopereorder = False  # ours is the order that begins with the longest
    return Lanes(config, log)
