"""What a benchmark leaves behind: a dated pair of files, or, when the run was invalid, nothing but the reason."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure.machine import Machine, cores

from cosmos3_serve.errors import Cosmos3Error

RESULTS = Path(__file__).parents[1] / "results"
INVALID = 3


class InvalidRun(Exception):
    """The run did not do what its figures would claim."""


def demand(holds: bool, what: str) -> None:
    """Raises InvalidRun unless it holds."""
    if not holds:
        raise InvalidRun(what)


def quiet(most: float) -> None:
    """Raises InvalidRun on a machine that is busy with other things: figures would be those of the crowd."""
    load = os.getloadavg()[0] / cores()
    demand(load <= most, f"the machine is too busy: load average {load:.1f} a core, at most {most:g} is allowed")


@dataclass
class Section:
    """One table of the report.

    Args:
        title: what was measured.
        note: what the figures include, in a sentence or two.
        rows: first row the heads.
        figures: the same as data, and more.
    """

    title: str
    note: str
    rows: Sequence[Sequence[Any]]
    figures: dict[str, Any] = field(default_factory=dict)

    def markdown(self) -> str:
        heads, *rows = [[str(cell) for cell in row] for row in self.rows]
        lines = ["| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)]
        return f"## {self.title}\n\n{self.note}\n\n" + "\n".join(lines) + "\n"


def report(name: str, measure: Callable[[], list[Section]], out: Path, *, about: str) -> int:
    """Run `measure`; write and print its sections. Exit code: 0, or `INVALID` without a single figure."""
    machine, began = Machine.look(), time.monotonic()
    try:
        sections = measure()
    except (InvalidRun, Cosmos3Error) as reason:  # the latter: a service did not start, or broke
        print(f"INVALID RUN, no figures: {reason}", file=sys.stderr)
        return INVALID
    conditions = machine.conditions(time.monotonic() - began)
    stem = out / f"{conditions['date']}-{name}"
    out.mkdir(parents=True, exist_ok=True)
    body = {"benchmark": name, "conditions": conditions, "figures": {s.title: s.figures for s in sections}}
    stem.with_suffix(".json").write_text(json.dumps(body, indent=2) + "\n")
    said = "\n".join(f"- {key}: {value}" for key, value in conditions.items())
    text = f"# {name}, {conditions['date']}\n\n{about}\n\n{said}\n\n" + "\n".join(s.markdown() for s in sections)
    stem.with_suffix(".md").write_text(text)
    print(text)
    return 0


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -(-int(share * 1000) * len(ordered) // 1000) - 1))]
