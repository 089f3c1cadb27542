"""A queue of 10,000 tiny samples on this machine: memory, queue file, restart after a kill, two workers on one queue.

`--short` makes it a matter of a minute. An invalid run (a failed worker, a sample twice or missing, other bytes) prints
no figure and ends 3.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from measure.queueing import queueing
from measure.result import RESULTS, report

ABOUT = "No engine runs here: the samples are small texts from the tests' ledger server."


def main(argv: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--short", action="store_true", help="fewer samples")
    options.add_argument("--out", type=Path, default=RESULTS, help="where results are written")
    options.add_argument("--samples", type=int, help="of the largest queue")
    chosen = options.parse_args(argv)
    most = chosen.samples or (2_000 if chosen.short else 10_000)
    with tempfile.TemporaryDirectory(prefix="bench-") as base:
        name = "queue-short" if chosen.short else "queue"
        return report(name, lambda: queueing(Path(base), [most // 4, most]), chosen.out, about=ABOUT)


if __name__ == "__main__":
    sys.exit(main())
