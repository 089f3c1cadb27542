"""What a busy machine adds to everybody's waiting, so that a test of an answer's time can take it off."""

from __future__ import annotations

import threading
import time
from typing import Self

PERIOD_S = 0.01


class Lateness:
    """Context manager; `worst_s` is how late a thread was woken that asks for nothing but to be woken every 10 ms."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.perf_counter()
            time.sleep(PERIOD_S)
            self.worst_s = max(self.worst_s, time.perf_counter() - began - PERIOD_S)
