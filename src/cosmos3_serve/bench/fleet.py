"""How many replicas serve an endpoint: by its own word, else by the caller's."""

from __future__ import annotations

from typing import Any

from cosmos3_serve.errors import Cosmos3Error, InputError
from cosmos3_serve.reasoner_client.ask import Reasoner

# States of a replica, in `/ready`, that take questions.
SERVING = ("ready", "saturated")


async def fleet_size(reasoner: Reasoner) -> int | None:
    """Replicas that take questions now, as `/ready` of our server says; None: this server does not say."""
    try:
        replicas = (await reasoner.get("/ready")).get("replicas")
    except Cosmos3Error:
        return None
    return sum(state in SERVING for state in replicas.values()) if isinstance(replicas, dict) else None


async def known_fleet(reasoner: Reasoner, said: int | None) -> dict[str, Any]:
    """`fleet` and `fleet_by` of a run.

    Args:
        said: by the caller.

    Raises:
        InputError: the server says another number (code `replicas_contradicted`).
    """
    size = await fleet_size(reasoner)
    if size is None:
        return {"fleet": [] if said is None else [said], "fleet_by": "server" if said is None else "caller"}
    if said is not None and said != size:
        raise InputError(
            f"the server says that {size} replicas serve, not {said}",
            code="replicas_contradicted",
            remedy="leave out --replicas: it is for servers that do not say; or wait until all replicas serve",
        )
    return {"fleet": [size], "fleet_by": "server"}
