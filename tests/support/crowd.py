"""Fifty clients, of whom forty leave while the service holds the batches of all fifty."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx

from cosmos3_serve.service.local import LocalService

FIFTY, STAY_EVERY = 50, 5
WITHIN_S = 60.0


@dataclass
class Crowd:
    """What became of them. `queued` batches waited when the forty left; `left` are the states in which those of the
    forty ended, `stayed` the answers to the other ten."""

    queued: int
    left: Counter[str]
    stayed: list[httpx.Response]


def forty_of_fifty_leave(service: LocalService, sample: dict[str, Any], name: str) -> Crowd:
    """Fifty blocking posts of one sample over one client, so that connecting takes no part; forty are given up once
    the ledger lists all fifty."""
    return asyncio.run(_scenario(service, sample, name))


async def _scenario(service: LocalService, sample: dict[str, Any], name: str) -> Crowd:
    ids = [f"{name}-{i}" for i in range(FIFTY)]
    leaving = {id for i, id in enumerate(ids) if i % STAY_EVERY}
    async with httpx.AsyncClient(
        base_url=service.url, headers=service.headers, timeout=60, limits=httpx.Limits(max_connections=FIFTY + 10)
    ) as http:

        async def states() -> dict[str, str]:
            listed = (await http.get("/v1/batches", params={"limit": 500})).json()["batches"]
            return {batch["request_id"]: batch["state"] for batch in listed if batch["request_id"] in ids}

        posts = {
            id: asyncio.create_task(http.post("/v1/batches", json={"samples": [sample], "request_id": id}))
            for id in ids
        }
        seen = await _once(lambda found: len(found) == FIFTY, states)
        for id in leaving:
            posts[id].cancel()
        stayed = await asyncio.gather(*(post for id, post in posts.items() if id not in leaving))
        ended = await _once(lambda found: not {"queued", "running"} & set(found.values()), states)
        await asyncio.gather(*posts.values(), return_exceptions=True)
    queued = sum(state == "queued" for state in seen.values())
    return Crowd(queued, Counter(ended[id] for id in leaving), stayed)


async def _once(
    enough: Callable[[dict[str, str]], bool], look: Callable[[], Awaitable[dict[str, str]]]
) -> dict[str, str]:
    """The first look that is enough; AssertionError when none is in time."""
    deadline = time.monotonic() + WITHIN_S
    while not enough(found := await look()):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.02)
    return found
