"""Seeded trouble for a fleet in one process: two tenants ask all the while, and replicas, gateways' connections and the
registry fail.

Every question carries a text of its own; replicas answer with that text, so that an answer of another question, or of
another tenant, is seen at once. The same seed makes the same choices; what meets what depends on the machine's pace.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
from aiohttp import web
from support.gateway import CHAT, OTHER_TOKEN, TOKEN, World, events, text
from support.stub_replica import StubReplica, Turn, breaks, dies, hangs, says

from cosmos3_serve.reasoner.fleet.core import FleetCore
from cosmos3_serve.reasoner.fleet.member import HeldMedia, Service
from cosmos3_serve.reasoner.sessions.policy import AffinityRules

TENANTS = {"one": TOKEN, "two": OTHER_TOKEN}
PAUSE_S = 0.02  # between two questions of a client: trouble must get its turn
DEADLINE_S = 60.0  # every bound of the gateways is far below
# What a client may be told of a fleet in trouble. Anything else, a 500 above all, is a fault of ours.
TYPED = {
    "replica_lost", "replica_lost_on_request", "replica_timeout", "replica_failed", "queue_full", "fleet_saturated",
    "request_fails", "no_replica", "request_suspected", "request_quarantined",
}  # fmt: skip


def streamed(turn: Turn) -> Turn:
    """Only where a stream was asked for: no engine answers a whole question with events."""

    async def only(stub: StubReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse | None:
        return await turn(stub, request, body) if body.get("stream") else None

    return only


BROKEN = b'data: {"error": {"message": "x", "type": "InternalServerError", "code": 500}}\n\n'
TURNS: list[Turn] = [
    dies, hangs, streamed(breaks()), streamed(breaks(BROKEN)), streamed(breaks(b"\n\n")),
    says(500, "a fault", "InternalServerError"), says(429, "full", "TooManyRequests", {"retry-after": "0"}),
    says(503, "busy", "ServiceUnavailable"),
]  # fmt: skip
WEIGHTS = {"turn": 8, "kill": 2, "hang": 2, "slow": 2, "silent": 1, "registry away": 1, "registry dies": 1}


class EchoReplica(StubReplica):
    """Answers with the question's text, one word at a time where it streams."""

    def _said(self, body: dict[str, Any]) -> str:
        content = body["messages"][-1]["content"]
        return content if isinstance(content, str) else str(content[-1]["text"])

    def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        whole = super()._whole(body)
        whole["choices"][0]["message"]["content"] = self._said(body)
        return whole

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await answer.prepare(request)
        await self.gate.wait()
        for word in self._said(body).split():
            await self.event(answer, {"content": f"{word} "})
            await asyncio.sleep(0.002)
        await self.event(answer, {}, finish_reason="stop")
        await answer.write(b"data: [DONE]\n\n")
        await answer.write_eof()
        return answer


@dataclass
class Chaos:
    here: World
    seed: int
    http: httpx.AsyncClient
    ends: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    stopped: bool = False

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._tasks: list[asyncio.Task[None]] = []

    # ---- questions --------------------------------------------------------------------------------------------------

    async def asks(self, tenant: str, number: int) -> None:
        """One client: a question after the other, of one session, whole and streamed by turns."""
        headers, count = {"X-Session-ID": f"session-{number}"}, 0
        while not self.stopped:
            count += 1
            gateway = self.here.gateways[(number + count) % len(self.here.gateways)]
            await self.ask(gateway.url, tenant, f"{tenant} {self.seed} {number} {count}", count % 2 == 0, headers)
            await asyncio.sleep(PAUSE_S)

    async def ask(self, url: str, tenant: str, words: str, stream: bool, headers: dict[str, str]) -> str:
        """How it ended; a wrong answer is noted."""
        head = {"Authorization": f"Bearer {TENANTS[tenant]}", **headers}
        try:
            async with (
                asyncio.timeout(DEADLINE_S),
                httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as http,
            ):
                told = await http.post(CHAT, json=text(words, stream=stream), headers=head)
        except TimeoutError:
            end = "no end"
        except httpx.HTTPError as error:
            end = type(error).__name__
        else:
            end = _streamed(told, words) if stream and told.status_code == 200 else _whole(told, words)
        self.ends[end] += 1
        if end not in ("answered", *TYPED):
            self.wrong.append(f"{words!r} (stream {stream}) ended as {end}")
        return end

    # ---- trouble ----------------------------------------------------------------------------------------------------

    async def trouble(self) -> None:
        while not self.stopped:
            await asyncio.sleep(self._draw.uniform(0.02, 0.2))
            fault = self._draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            self.faults[fault] += 1
            work = getattr(self, "_" + fault.replace(" ", "_"))(self._draw.choice(self.here.replicas))
            self._tasks.append(asyncio.create_task(work))

    async def _turn(self, stub: StubReplica) -> None:
        stub.turns.append(self._draw.choice(TURNS))

    async def _kill(self, stub: StubReplica) -> None:
        """It ends, the registry is told, and another life takes its place."""
        place = self.here.places.pop(stub.name, None)
        if place is None:
            return
        await stub.stop()
        await self.here.core.leave(place)
        await asyncio.sleep(self._draw.uniform(0, 0.2))
        await self._back(stub)

    async def _silent(self, stub: StubReplica) -> None:
        """It ends, and nobody is told until it is back."""
        if self.here.places.pop(stub.name, None) is None:
            return
        await stub.stop()
        await asyncio.sleep(self._draw.uniform(0, 0.5))
        await self._back(stub)

    async def _back(self, stub: StubReplica) -> None:
        stub.turns, stub.healthy = [], True
        stub.held.clear()
        await stub.start()
        await self.here.register(stub)

    async def _hang(self, stub: StubReplica) -> None:
        stub.gate.clear()
        asyncio.get_running_loop().call_later(self._draw.uniform(0.1, 3), stub.gate.set)

    async def _slow(self, stub: StubReplica) -> None:
        pause_s = self._draw.uniform(0.05, 0.5)

        async def waits(stub: StubReplica, request: web.Request, body: dict[str, Any]) -> None:
            await asyncio.sleep(pause_s)

        stub.turns += [waits] * self._draw.randint(1, 8)

    async def _registry_away(self, _: StubReplica) -> None:
        self.here.fleet.away = True
        asyncio.get_running_loop().call_later(self._draw.uniform(0.1, 1), setattr, self.here.fleet, "away", False)

    async def _registry_dies(self, _: StubReplica) -> None:
        """It comes back empty; replicas claim their places again."""
        core = FleetCore(AffinityRules(), len(self.here.replicas))
        self.here.core = self.here.fleet.core = core
        for stub in self.here.replicas:
            if (place := self.here.places.get(stub.name)) is not None:
                service = Service(stub.url, self.here.slots, HeldMedia(10**10, self.here.held_items))
                if (again := await core.register(service, place)) is not None and stub.name in self.here.places:
                    self.here.places[stub.name] = again

    async def heal(self) -> None:
        """Everything works again once every replica is back."""
        self.stopped = True
        self.here.fleet.away = False
        await asyncio.gather(*self._tasks)  # a failure there is one of the test
        for stub in self.here.replicas:
            stub.turns, stub.healthy = [], True
            stub.gate.set()


def _whole(told: httpx.Response, words: str) -> str:
    if told.status_code == 200:
        said = told.json()["choices"][0]["message"]["content"]
        return "answered" if said == words else f"another answer: {said!r}"
    return _code(told.json())


def _streamed(told: httpx.Response, words: str) -> str:
    found = events(told.text)
    if not found or found[-1] != "[DONE]":
        return "a stream without an end"
    if "error" in found[-2]:
        return _code(found[-2])
    said = "".join(event["choices"][0]["delta"].get("content", "") for event in found[:-1]).strip()
    return "answered" if said == words else f"another answer: {said!r}"


def _code(value: Any) -> str:
    try:
        return str(value["error"]["code"])
    except (KeyError, TypeError):
        return f"no typed error: {json.dumps(value)[:200]}"
