"""How long a service takes to start, stage by stage, and what it holds while it does nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from measure.processes import cpu_s, pss_by_role, tree
from measure.result import Section, demand

from cosmos3_serve.generator.local import LocalGenerator

STAGES = {
    "checks": "interpreter, imports, every refusal that needs no cluster",
    "ray": "Ray's own processes are up",
    "guardrails": "guardrails asked for are proven to be there (here: none are, the operator opted out)",
    "deployed": "Serve's controller runs and has the application",
    "ingress": "the port answers",
    "engine": "the model replica has imported, loaded its weights and answered",
    "ready": "the canary has passed, /ready is 200",
}
START_NOTE = (
    "Seconds from the start of the process to the end of each stage, the tiny checkpoint already cached. CPU is "
    "what all its processes had used by then."
)
IDLE_NOTE = (
    "Proportional set size (shared pages divided among those who share them) of every process, {seconds:.0f} s "
    "after ready."
)


def started(service: LocalGenerator) -> dict[str, Any]:
    """The stages of a service that is ready."""
    stages: dict[str, float] = service.ready["start_s"]
    demand(list(stages) == list(STAGES), f"a stage is missing: {list(stages)}")
    return {**stages, "cpu_s": cpu_s(tree(service.pid))}


def start_section(starts: list[dict[str, Any]]) -> Section:
    rows: list[list[Any]] = [["stage", *(f"start {i + 1}" for i in range(len(starts))), "what has happened"]]
    for stage, what in STAGES.items():
        rows.append([stage, *(f"{start[stage]:.1f}" for start in starts), what])
    rows.append(["CPU s", *(f"{start['cpu_s']:.1f}" for start in starts), "used by all processes until then"])
    return Section("Start-up", START_NOTE, rows, {"starts": starts})


def idle_section(service: LocalGenerator, wait_s: float) -> Section:
    time.sleep(wait_s)
    held = pss_by_role(service.pid)
    began, used, pids = time.monotonic(), cpu_s(tree(service.pid)), tree(service.pid)
    time.sleep(wait_s)
    busy = (cpu_s(pids) - used) / (time.monotonic() - began)
    demand("model replica" in held and "ingress replica" in held, f"the tree is not a service: {list(held)}")
    rows: list[list[Any]] = [["processes", "MB"], *([name, f"{mb:.0f}"] for name, mb in held.items())]
    rows += [["**all**", f"**{sum(held.values()):.0f}**"], ["CPU while idle, cores", f"{busy:.2f}"]]
    figures = {"pss_mb": held, "total_mb": sum(held.values()), "idle_cores": busy}
    return Section("Idle memory", IDLE_NOTE.format(seconds=wait_s), rows, figures)


def another_start(environ: dict[str, str], cache: Path) -> dict[str, Any]:
    with LocalGenerator(environ, cache) as service:
        return started(service)
