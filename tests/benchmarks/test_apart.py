"""Who runs where while the engine is set apart."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from measure.apart import apart


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: nothing can be set apart")
def test_engines_have_a_core_that_nobody_else_has_until_it_is_over() -> None:
    may = os.sched_getaffinity(0)
    over = threading.Event()
    thread = threading.Thread(target=over.wait)  # threads count, not processes
    thread.start()
    engine = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    try:
        with pytest.raises(ZeroDivisionError), apart([engine.pid], [os.getpid(), gone.pid]):
            (alone,) = os.sched_getaffinity(engine.pid)
            assert os.sched_getaffinity(0) == os.sched_getaffinity(thread.native_id or 0) == may - {alone}
            raise ZeroDivisionError
        assert os.sched_getaffinity(engine.pid) == os.sched_getaffinity(0) == may
    finally:
        over.set()
        engine.kill()
        engine.wait()
