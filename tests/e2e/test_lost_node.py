"""A fleet grows onto other nodes of a cluster, and one of them is gone without a word, in the middle of questions: each
ends, with an answer or a typed error, within seconds.

Every process of the node is stopped: like a machine without power it answers nothing and closes nothing. The engine is
a double (`stub_engine.py`); the nodes are Ray's own on this machine.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.fleet import fake_engine
from support.gateway import CHAT, text
from support.processes import left_after, marked, new_mark
from support.ray_nodes import RayNodes
from support.service import shared_cache

from cosmos3_serve.reasoner.local import LocalReasoner
from cosmos3_serve.settings import REASONER_TOKEN_ENV

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

TOKEN = {REASONER_TOKEN_ENV: "a-token-of-the-cluster"}
WITHIN_S = 60.0  # 8 s of silence on an idle machine; without the registry's word it is --answer-timeout-s, 300 s
TYPED = {"replica_lost", "replica_lost_on_request", "request_suspected"}


class Lived:
    """The service on three nodes of one GPU each, beside a head without."""

    def __init__(self, nodes: RayNodes, service: LocalReasoner, mark: dict[str, str]) -> None:
        self.nodes, self.service, self.mark = nodes, service, mark

    def nodes_of(self, name: str) -> set[str]:
        """Where the processes run whose command line begins so."""
        return {self.nodes.node_of(pid) for pid, line in marked(self.mark).items() if line.startswith(name)}

    async def replicas(self, http: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
        """By node: those that serve, as the service tells."""
        rows = (await http.get("/system-info")).json()["replicas"]
        return {row["node"]: row for row in rows if row["phase"] == "ready"}

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.service.url, headers=self.service.headers, timeout=4 * WITHIN_S)


@pytest.fixture
def lived(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    mark = new_mark()
    settings = {
        "COSMOS3_REASONER_WORKERS": "1:3",
        "COSMOS3_REASONER_SCALE_LOAD": "2",
        "COSMOS3_REASONER_SCALE_DOWN_AFTER_S": "3600",
        "COSMOS3_REASONER_DRAIN_TIMEOUT_S": "5",
        "COSMOS3_VLLM_PYTHON": fake_engine(tmp_path, "stub_engine.py"),
    }
    with RayNodes(1, 1, 1, environ={**TOKEN, **mark}) as nodes:
        service = LocalReasoner({**TOKEN, **mark, **settings, **nodes.reach}, shared_cache(tmp_path_factory))
        with service:
            yield Lived(nodes, service, mark)
    assert left_after(mark) == {}


async def ask(http: httpx.AsyncClient, session: str, words: str) -> tuple[str, float]:
    """What became of a question: `answered` or a code, and the seconds that it took."""
    began = time.monotonic()
    told = await http.post(CHAT, json=text(words), headers={"X-Session-ID": session})
    found = "answered" if told.status_code == 200 else told.json()["error"]["code"]
    return found, time.monotonic() - began


async def stream(http: httpx.AsyncClient, session: str, words: str, begun: asyncio.Event) -> tuple[str, float]:
    """The same of an answer that is streamed; `begun` is set with its first word."""
    began, body = time.monotonic(), ""
    asked = http.stream("POST", CHAT, json=text(words, stream=True), headers={"X-Session-ID": session})
    async with asked as told:
        async for piece in told.aiter_text():
            body += piece
            if "word-0" in body:
                begun.set()
    failed = [code for code in TYPED if f'"{code}"' in body]
    return failed[0] if failed else "answered", time.monotonic() - began


async def session_on(lived: Lived, http: httpx.AsyncClient, replica: str) -> str:
    for number in range(50):
        told = await http.post(CHAT, json=text("known"), headers={"X-Session-ID": f"s{number}"})
        if told.headers["x-cosmos3-replica"] == replica:
            return f"s{number}"
    raise AssertionError("no session settled there")


async def test_questions_on_a_node_that_is_gone_end_within_seconds(lived: Lived, tmp_path: Path) -> None:
    elsewhere = lived.nodes_of("ray::ServeReplica:cosmos3_reasoner:gateway")
    codes: Counter[str] = Counter()
    async with lived.client() as http:
        assert len(await lived.replicas(http)) == 1
        enough = tmp_path / "enough"
        load = [asyncio.create_task(stream(http, f"load-{n}", f"until={enough}", asyncio.Event())) for n in range(6)]
        async with asyncio.timeout(4 * WITHIN_S):
            while len(replicas := await lived.replicas(http)) < 3:  # noqa: ASYNC110  # a GPU each, so a node each
                await asyncio.sleep(0.2)
        enough.touch()
        assert not lived.nodes_of("ray::FleetActor") & replicas.keys(), "the registry goes with the head only"
        assert {code for code, _ in await asyncio.gather(*load)} == {"answered"}
        victim = sorted(replicas.keys() - elsewhere)[0]
        gone = replicas[victim]["id"]
        session = await session_on(lived, http, gone)
        signs = [asyncio.Event() for _ in range(3)]  # of answers that have begun, and go on
        begun = [asyncio.create_task(stream(http, session, f"take={600 + n}", sign)) for n, sign in enumerate(signs)]
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*(sign.wait() for sign in signs))
        lived.nodes.freeze(victim)
        frozen = time.monotonic()
        asked = [asyncio.create_task(ask(http, session, "known")) for _ in range(3)]
        asked += [asyncio.create_task(ask(http, session, f"never asked before {n}")) for n in range(3)]
        others = [asyncio.create_task(keep_asking(http, f"other-{n}", frozen + 20)) for n in range(4)]
        ends = await asyncio.gather(*begun, *asked)
        for code, seconds in ends:
            assert seconds < WITHIN_S, (code, seconds)
            codes[code] += 1
        assert [code for code, _ in ends[:3]] == ["replica_lost"] * 3
        assert [code for code, _ in ends[3:6]] == ["answered"] * 3, "they had been answered before: others take them"
        assert {code for code, _ in ends[6:]} <= {*TYPED, "answered"}
        took = time.monotonic() - frozen
        rest = [end for found in await asyncio.gather(*others) for end in found]
        assert {code for code, _ in rest} == {"answered"}
        assert max(seconds for _, seconds in rest) < WITHIN_S
        print(f"all over {took:.1f} s after the node was gone: {dict(codes)}; others: {len(rest)} answers")
        ready: dict[str, Any] = (await http.get("/ready")).json()
        assert ready["status"] == "ready" and ready["replicas"][gone] in ("starting", "dead")
        now = await http.post(CHAT, json=text("known"), headers={"X-Session-ID": session})
        assert now.status_code == 200 and now.headers["x-cosmos3-replica"] != gone


async def keep_asking(http: httpx.AsyncClient, session: str, until: float) -> list[tuple[str, float]]:
    found = []
    while time.monotonic() < until:
        found.append(await ask(http, session, "known"))
        await asyncio.sleep(0.2)
    return found
