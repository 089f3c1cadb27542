"""End asynchronous work cleanly on Ctrl-C and SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cosmos3_serve.errors import Interrupted

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def until_signal(work: Coroutine[Any, Any, T], interrupted: Callable[[], Interrupted]) -> T:
    """Await `work`, which either signal cancels; outside the main thread signals stay as they are.

    Raises:
        Interrupted: what `interrupted` returns then: it says what to do next.
    """
    task = asyncio.ensure_future(work)
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        task.cancel()

    loop = asyncio.get_running_loop()
    taken = SIGNALS if threading.current_thread() is threading.main_thread() else ()
    for number in taken:
        loop.add_signal_handler(number, stop)
    try:
        return await task
    except asyncio.CancelledError:
        if not stopped:
            raise
        raise interrupted() from None
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
