"""The reasoner's front door alone: CPU and requests per second over instant stub replicas, beside Dynamo's frontend.

Dynamo takes part where COSMOS3_DYNAMO_PYTHON names a Python that has ai-dynamo 1.6.1 (benchmarks/README.md says how).
An invalid run (a failed or broken answer, a question that reached no replica, a machine too busy) prints no figure and
ends 3.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from measure.front import EIGHT, ONE, STREAM, TEXT, front
from measure.result import RESULTS, Section, quiet, report

ABOUT = (
    "The gateway as it is deployed, over STUB engines that answer at once: what is measured is the way to a replica "
    "and back, not a model."
)


def main(argv: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--short", action="store_true", help="one repeat, without the 8 MiB body")
    options.add_argument("--out", type=Path, default=RESULTS, help="where results are written")
    options.add_argument("--seconds", type=float, default=2.0, help="of one cell")
    options.add_argument("--repeats", type=int)
    options.add_argument("--at-once", type=int, nargs="+")
    options.add_argument("--only", nargs="+", choices=[TEXT, ONE, EIGHT, STREAM])
    options.add_argument("--cache", type=Path, help="where the tiny checkpoint is kept between runs")
    options.add_argument("--max-load", type=float, default=3.0, help="load average a core above which nothing is run")
    chosen = options.parse_args(argv)
    which = chosen.only or [TEXT, ONE, STREAM, *([] if chosen.short else [EIGHT])]

    def measure(base: Path) -> list[Section]:
        quiet(chosen.max_load)
        return front(
            base,
            seconds=chosen.seconds,
            repeats=chosen.repeats or (1 if chosen.short else 3),
            concurrency=chosen.at_once or ([16] if chosen.short else [1, 16, 64]),
            which=which,
            environ={"COSMOS3_CACHE_DIR": str(chosen.cache)} if chosen.cache else None,
        )

    with tempfile.TemporaryDirectory(prefix="bench-") as base:
        name = "reasoner-front-short" if chosen.short else "reasoner-front"
        return report(name, lambda: measure(Path(base)), chosen.out, about=ABOUT)


if __name__ == "__main__":
    sys.exit(main())
