"""`python -m cosmos3_serve.generator.leave`: drain the generator of this cluster before a pod of it ends.

For a preStop hook: the pod's processes are ended only after it. Nothing new is taken, what runs finishes, the port
closes; a batch that is not through stays in the ledger. Safe to run on several pods at once, since a drain begins once
and everyone waits for the same port to close.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from cosmos3_serve.contract.wire import APP_NAME

DONE, NOT_DONE = 0, 1
ASK_S = 10.0
# After the drain itself: results are written for up to 10 seconds, connections end for up to 5; and this call's start.
RESERVE_S = 25.0
POLL_S = 1.0
CONNECT_S = 3.0


def leave(timeout_s: float) -> bool:
    """Whether the ingress has drained and closed its port within `timeout_s`. Blocking."""
    import ray
    from ray import serve

    until = time.monotonic() + timeout_s
    ray.init(address="auto", log_to_driver=False, configure_logging=False)
    try:
        ingress = serve.get_app_handle(APP_NAME)
        status: dict[str, Any] = ingress.status.remote().result(timeout_s=ASK_S)
        # An answer may be lost with the replica that gives it; the port tells all the same.
        draining = ingress.drain.remote(max(0.0, until - time.monotonic() - RESERVE_S))
        closed = _closed(status["address"], int(status["port"]), until)
        with contextlib.suppress(Exception):
            draining.result(timeout_s=max(0.1, min(ASK_S, until - time.monotonic())))
        return closed
    finally:
        ray.shutdown()


def _closed(address: str, port: int, until: float) -> bool:
    while time.monotonic() < until:
        try:
            socket.create_connection((address, port), timeout=CONNECT_S).close()
        except OSError:
            return True
        time.sleep(min(POLL_S, max(0.0, until - time.monotonic())))
    return False


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 for a finished drain, 1 for none: a pod ends all the same, the code is for the events."""
    parser = argparse.ArgumentParser(prog="cosmos3_serve.generator.leave", description=__doc__.splitlines()[0])
    parser.add_argument("--timeout", type=float, required=True, help="seconds for everything")
    given = parser.parse_args(argv)
    try:
        drained = leave(given.timeout)
    except Exception as error:
        print(f"nothing to drain: {type(error).__name__}", file=sys.stderr)
        return NOT_DONE
    print("drained" if drained else "not drained in time", file=sys.stderr)
    return DONE if drained else NOT_DONE


if __name__ == "__main__":
    sys.exit(main())
