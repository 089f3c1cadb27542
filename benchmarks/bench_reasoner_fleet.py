"""The reasoner with real vLLM replicas on this machine: round robin against session affinity, and a warm question.

The tiny checkpoint with random weights, two CPU replicas: what the figures say is how often work is repeated, not how
fast the model is. Needs the engine's Python (`make setup-reasoner`). An invalid run prints no figure and ends 3.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from measure.fleet import AFFINITY, REPLICAS, ROUND_ROBIN, clips, fleet, measured, profile_section
from measure.result import RESULTS, Section, quiet, report
from measure.warm import warm_section

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.reasoner.engine.interpreter import find_interpreter
from cosmos3_serve.settings import ReasonerSettings

ABOUT = (
    "Real vLLM on the CPU with the tiny checkpoint: random weights. Ratios between columns are the result; the seconds "
    "are those of this machine."
)
CLIP_S, AT_ONCE = 4.0, 4
# A service each; affinity's answers twice, and about the warm clip when its repeats are over.
SERVICES = ((ROUND_ROBIN, 1), (AFFINITY, 2), (ROUND_ROBIN, 1))


def main(argv: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--short", action="store_true", help="fewer videos and questions")
    options.add_argument("--out", type=Path, default=RESULTS, help="where results are written")
    options.add_argument("--cache", type=Path, help="where the tiny checkpoint and compiled code are kept between runs")
    options.add_argument("--only", choices=["profiles", "warm"], help="one of the two parts")
    options.add_argument("--max-load", type=float, default=3.0, help="load average a core above which nothing is run")
    chosen = options.parse_args(argv)
    try:
        find_interpreter(ReasonerSettings.load().vllm_python)
    except StartRefused as refused:
        print(f"SKIPPED, nothing measured: {refused.detail}; {refused.remedy}", file=sys.stderr)
        return 0
    videos, questions, rounds = (4, 3, 3) if chosen.short else (12, 8, 12)

    def measure(base: Path) -> list[Section]:
        quiet(chosen.max_load)
        runs: list[tuple[str, dict[str, Any]]] = []
        warm: list[Section] = []
        for routing, repeats in SERVICES if chosen.only != "warm" else ((AFFINITY, 0),):
            fresh = [clips(videos + REPLICAS, CLIP_S, seed=len(runs) + n) for n in range(repeats)]
            with fleet(base, routing) as service:
                runs += [(routing, measured(service, some, questions, AT_ONCE)) for some in fresh]
                if routing == AFFINITY and chosen.only != "profiles":
                    warm.append(warm_section(service, rounds))
        return [*([profile_section(runs, CLIP_S, AT_ONCE)] if runs else []), *warm]

    name = f"reasoner-{chosen.only or 'fleet'}{'-short' if chosen.short else ''}"
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        return report(name, lambda: measure(chosen.cache or Path(folder)), chosen.out, about=ABOUT)


if __name__ == "__main__":
    sys.exit(main())
