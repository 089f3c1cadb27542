"""Run the tests of bytes as they would run on other CPUs: each level of vector instructions that this CPU has, for
PyTorch's own kernels and for oneDNN, with one, two and four threads.

    python tests/support/cpu_levels.py [--short] [pytest arguments]

MKL follows neither variable: its kernels are those of this CPU in every run. `--short` leaves out the combinations in
which PyTorch and oneDNN have different levels.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[2]
THREADS = (1, 2, 4)
# PyTorch's name of a level, oneDNN's, and a flag of /proc/cpuinfo without which its code does not run.
LEVELS = (("default", "SSE41", ""), ("avx2", "AVX2", "avx2"), ("avx512", "AVX512_CORE", "avx512dq"))
TESTS = (
    "tests/generator/engines/diffusers",
    "tests/generator/engines/test_ahead.py",
    "tests/generator/engines/test_encode.py",
    "tests/generator/engines/test_media.py",
    "tests/weights/test_tiny.py",
)


def settings(flags: str, *, short: bool) -> Iterator[dict[str, str]]:
    """The variables of each run; first this CPU as it is."""
    levels = [level for level in LEVELS if level[2] in flags.split() or not level[2]]
    pairs = [(aten, onednn) for (aten, *_), (_, onednn, _) in product(levels, levels)]
    if short:
        pairs = [(aten, onednn) for aten, onednn, _ in levels]
    for threads in THREADS:
        yield {"COSMOS3_TEST_THREADS": str(threads)}
        for aten, onednn in pairs:
            chosen = {"ATEN_CPU_CAPABILITY": aten, "ONEDNN_MAX_CPU_ISA": onednn}
            yield {**chosen, "COSMOS3_TEST_THREADS": str(threads)}


def main(arguments: list[str]) -> int:
    short = "--short" in arguments
    rest = [argument for argument in arguments if argument != "--short"]
    tests = [] if any(Path(argument.partition("::")[0]).exists() for argument in rest) else TESTS
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        flags = ""
    failed = 0
    for chosen in settings(flags, short=short):
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, *rest]
        run = subprocess.run(command, cwd=ROOT, env={**os.environ, **chosen}, capture_output=True, text=True)
        failed += run.returncode != 0
        if run.returncode:
            print(run.stdout, run.stderr, sep="\n")
        last = (run.stdout.strip().splitlines() or ["no output"])[-1].strip("= ")
        named = " ".join(f"{name}={value}" for name, value in chosen.items())
        print(
            f"{'FAILED' if run.returncode else 'ok':6} {named:95} {time.monotonic() - began:5.0f} s  {last}", flush=True
        )
    return min(failed, 1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
