"""The client on this machine: publish rate for many small and a few large artifacts, and its peak memory.

`--short` makes it a matter of a minute. An invalid run (a failed client, a missing file, other bytes) prints no figure
and ends 3.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from measure.publishing import MB, Load, publishing
from measure.result import RESULTS, report

ABOUT = "No engine runs here: the files are real media from the tests' baseline server."


def main(argv: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--short", action="store_true", help="fewer and smaller artifacts")
    options.add_argument("--out", type=Path, default=RESULTS, help="where results are written")
    options.add_argument("--small", type=int, help="how many small artifacts")
    options.add_argument("--large-mb", type=int, help="size of each of the two large artifacts")
    options.add_argument("--to", choices=("s3", "folder"), action="append", help="default: both")
    options.add_argument(
        "--rtt-ms", type=float, action="append", help="compare with the baseline client over a line of this round trip"
    )
    options.add_argument("--repeats", type=int, default=3, help="with --rtt-ms: turns of each of the two clients")
    chosen = options.parse_args(argv)
    small = chosen.small if chosen.small is not None else 50 if chosen.short else 200
    large = chosen.large_mb if chosen.large_mb is not None else 100 if chosen.short else 400
    loads = [Load(f"{small} small", small)] if small else []
    loads += [Load(f"2 of {large} MB", 2, large * MB)] if large else []
    with tempfile.TemporaryDirectory(prefix="bench-") as base:
        name = "client-short" if chosen.short else "client"
        places = chosen.to or ["s3", "folder"]
        if chosen.rtt_ms:
            from measure.round_trip import compared, mixes

            return report(
                "client-round-trip",
                lambda: [compared(Path(base), mixes(small, large), places, chosen.rtt_ms, chosen.repeats)],
                chosen.out,
                about=ABOUT,
            )
        return report(name, lambda: [publishing(Path(base), loads, places)], chosen.out, about=ABOUT)


if __name__ == "__main__":
    sys.exit(main())
