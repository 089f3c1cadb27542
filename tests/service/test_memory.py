"""Freed buffers stay with the process: the next body finds its pages in place. Loading modules collects nothing."""

import gc
import subprocess
import sys

import pytest

from cosmos3_serve.service.memory import uncollected

FAULTS = """
import resource, sys
from cosmos3_serve.service.memory import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "kept" else True
def body():
    return len(b"".join([b"x" * 1_000_000, b"y" * 1_000_000]))
body()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    body()
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_bodies_of_megabytes_cost_few_page_faults() -> None:
    def faults(how: str) -> tuple[int, int]:
        said = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True).stdout
        kept, count = said.split()
        return int(kept), int(count)

    kept, count = faults("kept")
    if not kept:
        pytest.skip("this C library has no mallopt")
    assert count < 50 * 10
    assert count < faults("as it is")[1]


def test_nothing_is_collected_while_modules_load() -> None:
    running = gc.isenabled()
    try:
        gc.enable()
        with pytest.raises(ImportError), uncollected():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled()
        gc.disable()
        before = gc.get_freeze_count()
        with uncollected():
            loaded = [[] for _ in range(100)]
        assert not gc.isenabled()  # who turned it off before keeps it off
        assert gc.get_freeze_count() >= before + len(loaded)
    finally:
        (gc.enable if running else gc.disable)()
