"""`python -m cosmos3_serve.reasoner.leave`: take the replicas of this machine, or the whole fleet, out of service.

For a preStop hook: the pod's processes are ended only after it. Replicas of this machine take nothing new, so sessions
move to others, and what they answer ends; with `--fleet` (the cluster's head ends) every gateway takes nothing new.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from cosmos3_serve.reasoner.fleet.core import Overview
from cosmos3_serve.reasoner.setup import NAMESPACE, names_of

DONE, NOT_DONE = 0, 1
ASK_S = 10.0
POLL_S = 1.0
# Until every node has heard that this pod is no endpoint any more: questions still come here, and go to other replicas.
SETTLE_S = 10.0

Call = Callable[..., Any]


def leave(call: Call, address: str, *, fleet: bool, timeout_s: float, sleep: Callable[[float], None]) -> bool:
    """Whether nothing is answered here any more within `timeout_s`. Blocking.

    Args:
        call: method and arguments of the fleet's registry to its answer.
        address: of this machine, as the registry has it.
    """
    until = time.monotonic() + timeout_s
    if fleet:
        call("end")
    else:
        for member in _here(call("overview"), address):
            call("drain", member.ref)
    sleep(SETTLE_S)
    while time.monotonic() < until:
        sleep(POLL_S)  # by then gateways have heard it, and say what they still answer
        found: Overview = call("overview")
        gateways = sum(g.in_flight for g in found.gateways if fleet or g.address == address)
        loads = [found.loads.get(member.ref) for member in _here(found, address)]
        if not gateways and not sum(load.running + load.waiting for load in loads if load is not None):
            return True
    return False


def _here(found: Overview, address: str) -> list[Any]:
    return [member for member in found.members if urlsplit(member.url).hostname == address]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when all is quiet, 1 otherwise: a pod ends all the same, the code is for the events."""
    parser = argparse.ArgumentParser(prog="cosmos3_serve.reasoner.leave", description=__doc__.splitlines()[0])
    parser.add_argument("--timeout", type=float, required=True, help="seconds for everything")
    parser.add_argument("--fleet", action="store_true", help="the whole service ends, not this machine alone")
    parser.add_argument("--name", default="", help="of the service, where it has one")
    given = parser.parse_args(argv)
    try:
        import ray

        ray.init(address="auto", log_to_driver=False, configure_logging=False)
        actor = ray.get_actor(names_of(given.name).registry, namespace=NAMESPACE)

        def call(method: str, *args: Any) -> Any:
            return ray.get(getattr(actor, method).remote(*args), timeout=ASK_S)

        address = ray.util.get_node_ip_address()
        quiet = leave(call, address, fleet=given.fleet, timeout_s=given.timeout, sleep=time.sleep)
    except Exception as error:
        print(f"nothing to take out of service: {type(error).__name__}", file=sys.stderr)
        return NOT_DONE
    print("out of service" if quiet else "answers were still running", file=sys.stderr)
    return DONE if quiet else NOT_DONE


if __name__ == "__main__":
    sys.exit(main())
