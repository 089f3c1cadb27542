"""The smallest gateway: the fleet's port, the router and one HTTP server, to judge the fleet without the real front.

Run as a script it is the reasoner service with this gateway.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.reasoner.application import affinity_rules
from cosmos3_serve.reasoner.fleet.health import HealthBook
from cosmos3_serve.reasoner.fleet.member import GatewayStatus
from cosmos3_serve.reasoner.fleet.replicas import ReplicaState
from cosmos3_serve.reasoner.fleet.view import FleetPort
from cosmos3_serve.reasoner.registry import RayFleet
from cosmos3_serve.reasoner.sessions.keys import SessionKey
from cosmos3_serve.reasoner.sessions.lease import LeaseCache
from cosmos3_serve.reasoner.sessions.policy import Profile
from cosmos3_serve.reasoner.sessions.router import Refused, Router
from cosmos3_serve.reasoner.sessions.suspects import SuspectTracker
from cosmos3_serve.reasoner.setup import SECRET_HEADER, ReasonerSetup
from cosmos3_serve.service import logs
from cosmos3_serve.service.http_server import HttpServer


class PlainGateway:
    async def __init__(self, setup: ReasonerSetup) -> None:  # type: ignore[misc]
        logs.configure(setup.settings.log_level)
        self.name = uuid.uuid4().hex
        self.in_flight = 0
        self.registry = setup.names.registry
        self.fleet = FleetPort.connect(setup, self._status)
        self.fleet.on_change(self._changed)
        suspects = SuspectTracker(judge=False)
        self.health = HealthBook()
        leases = LeaseCache(self.name, self.fleet.table, affinity_rules(setup.settings), suspects, self.health)
        self.router = Router(Profile(setup.settings.routing), self.health, leases, suspects)
        self.http = aiohttp.ClientSession(headers={SECRET_HEADER: setup.secret})
        routes = [
            Route("/fleet", self._fleet_route),
            Route("/choose/{key}", self._choose_route),
            Route("/table", self._table_route),
            Route("/tell/{method}", self._tell_route),
            Route("/tell/{method}/{replica}", self._tell_route),
            Route("/answer/{lines:int}", self._answer_route),
        ]
        self.server = HttpServer(Starlette(routes=routes), setup.settings.host, setup.port)
        await self.server.start()
        await self.fleet.start()
        self.tasks = [asyncio.create_task(self._report())]

    async def _report(self) -> None:
        while True:
            now = time.monotonic()
            if self.router.leases.due(now):
                await self.router.leases.flush(now)
            for ref, _ in self.health.take_probes(now):
                url = next((m.url for m in self.fleet.members() if m.ref == ref), "")
                self.health.on_probe(ref, await self._alive(url), time.monotonic())
            await asyncio.sleep(0.05)

    async def _alive(self, url: str) -> bool:
        try:
            async with self.http.get(f"{url}/health", timeout=aiohttp.ClientTimeout(5)) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return False

    def _changed(self) -> None:
        self.health.sync([member.spec for member in self.fleet.members()])

    def _status(self) -> GatewayStatus:
        serving = any(member.phase is ReplicaState.READY for member in self.fleet.members())
        port = self.server.port if hasattr(self, "server") else 0
        return GatewayStatus(
            self.name, "127.0.0.1", port, os.getpid(), ready=serving, in_flight=self.in_flight, ended=self.fleet.ended
        )

    async def _fleet_route(self, _: Request) -> JSONResponse:
        members = [
            {"id": m.replica_id, "incarnation": m.incarnation, "phase": m.phase, "leaving": m.leaving, "url": m.url,
             "pid": m.service.pid, "engine": dict(m.service.engine), "held": list(m.held),
             "load": self.fleet.loads().get(m.ref)}
            for m in self.fleet.members()
        ]  # fmt: skip
        return JSONResponse(
            {
                "members": members,
                "away": self.fleet.away,
                "draining": self.fleet.draining,
                "secret": self.fleet.secret,
                "pid": os.getpid(),
                "leases": len(self.router.leases),
            }
        )

    async def _table_route(self, _: Request) -> JSONResponse:
        stats = await self.fleet.table.stats()
        return JSONResponse({"generation": stats.generation, "sessions": stats.sessions})

    async def _tell_route(self, request: Request) -> JSONResponse:
        """A call of the registry, about one replica if it is named."""
        name = request.path_params.get("replica")
        refs = [member.ref for member in self.fleet.members() if member.replica_id == name]
        await RayFleet(self.registry).call(request.path_params["method"], *refs, timeout_s=5)
        return JSONResponse({})

    async def _answer_route(self, request: Request) -> StreamingResponse:
        """A long answer, a line every tenth of a second, counted as the real gateway counts its answers."""

        async def lines() -> AsyncIterator[str]:
            self.in_flight += 1
            try:
                for number in range(request.path_params["lines"]):
                    yield f"{number}\n"
                    await asyncio.sleep(0.1)
            finally:
                self.in_flight -= 1

        return StreamingResponse(lines(), media_type="text/plain")

    async def _choose_route(self, request: Request) -> JSONResponse:
        """One request of a session, as a gateway makes it: a place, an answer of its replica, one second choice."""
        key = SessionKey(request.path_params["key"], "test")
        decision = None
        try:
            while True:
                decision = await self.router.choose(key, time.monotonic(), after=decision)
                url = next((m.url for m in self.fleet.members() if m.ref == decision.ref), "")
                if await self._alive(url):
                    break
                aftermath = self.router.on_refused(decision, time.monotonic(), Refused.UNREACHABLE)
                if not aftermath.retry:
                    return JSONResponse({"error": str(aftermath.error)}, 503)
        except Cosmos3Error as error:
            return JSONResponse({"error": error.stable_code}, error.status)
        now = time.monotonic()
        self.router.on_accepted(decision, now)
        self.router.on_first_token(decision, now)
        self.router.on_finished(decision, now)
        found: dict[str, Any] = {"replica": decision.replica, "outcome": decision.outcome, "attempt": decision.attempt}
        return JSONResponse(found)

    async def check_health(self) -> None:
        if not self.server.alive:
            raise RuntimeError("the HTTP server has ended")


if __name__ == "__main__":
    from support.plain_gateway import PlainGateway as Importable

    from cosmos3_serve.reasoner.serve import run_reasoner
    from cosmos3_serve.settings import ReasonerSettings

    try:
        run_reasoner(ReasonerSettings.load(), gateway=Importable)
    except Cosmos3Error as refused:
        print(json.dumps(refused.as_problem()), file=sys.stderr)
        sys.exit(refused.exit_code)
