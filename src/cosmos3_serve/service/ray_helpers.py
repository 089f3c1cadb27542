"""Ray's helpers that an own cluster of one machine has no use for, and that `ray.init` has no option to leave out.

The API server holds the dashboard and usage statistics, which are off; the autoscaler's monitor waits for nodes that
never come; the log monitor carries the output of workers to a driver that does not want it. Together they take some
four seconds of CPU of every start, which waits for the first of them, and listen on two ports that ask for no token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

log = structlog.get_logger(__name__)

LEFT_OUT = ("start_api_server", "start_monitor", "start_log_monitor")


@contextmanager
def left_out() -> Iterator[None]:
    """What is started by `ray.init` within goes without them. Another Ray, without these methods, starts what it likes:
    nothing of ours depends on it."""
    from ray._private.node import Node

    kept = {name: getattr(Node, name) for name in LEFT_OUT if hasattr(Node, name)}
    if len(kept) < len(LEFT_OUT):
        log.debug("ray_helpers_unknown", known=sorted(kept))
    try:
        for name in kept:
            setattr(Node, name, _nothing)
        yield
    finally:
        for name, method in kept.items():
            setattr(Node, name, method)


def _nothing(node: Any, **_: Any) -> None:
    """In the place of a method that starts a process."""
