"""ReasonerGateway: the Serve deployment that answers the public port and routes questions to replicas.

It serves HTTP itself, in its own event loop: Serve's proxies are off. /health and /ready answer while replicas load.
Several gateways of one machine share the port.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from functools import partial
from typing import Any

import structlog

from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.reasoner.fleet.member import GatewayStatus
from cosmos3_serve.reasoner.fleet.view import FleetPort
from cosmos3_serve.reasoner.gateway.app import build_app
from cosmos3_serve.reasoner.gateway.assemble import add_checks, assemble
from cosmos3_serve.reasoner.gateway.info import ready_report
from cosmos3_serve.reasoner.gateway.upkeep import Upkeep
from cosmos3_serve.reasoner.setup import Names, ReasonerSetup
from cosmos3_serve.service import logs, memory
from cosmos3_serve.service.http_server import HttpServer
from cosmos3_serve.service.readiness import Remembered
from cosmos3_serve.service.tokens import TokenBook
from cosmos3_serve.settings import REASONER_TOKEN_ENV, REASONER_TOKEN_FILE_ENV

log = structlog.get_logger(__name__)

HTTP_GRACE_S = 5.0
REPORT_S = 0.5
SERVE_STATUS_S = 5.0
SERVE_STARTS_S = 1.0  # while it says no, somebody waits for the other answer
LINGER_S = 6.0  # clients keep an idle connection for five seconds or so; a question on it is answered meanwhile
OPEN_WITHIN_S = 5.0  # the port opens, so that /health and /ready say what is missing
QUIET_S = 2.0  # a drained gateway answers 503 for so long before its port closes


class ReasonerGateway:
    """
    Raises:
        StartRefused: no token, or the port is taken.
    """

    async def __init__(self, setup: ReasonerSetup) -> None:  # type: ignore[misc]  # Serve awaits it
        logs.configure(setup.settings.log_level)
        memory.keep_freed_memory()
        import ray

        self.name = uuid.uuid4().hex
        self._address = ray.util.get_node_ip_address()
        self._setup = setup
        self._report: dict[str, Any] = {}
        self._failure: Cosmos3Error | None = None
        self._stopped = False
        book = TokenBook.from_environ(token_env=REASONER_TOKEN_ENV, file_env=REASONER_TOKEN_FILE_ENV)
        self._fleet = FleetPort.connect(setup, self.status)
        self._front = front = assemble(setup, self._fleet, self.name, book)
        self._upkeep = Upkeep(front)
        add_checks(front, self._upkeep.canary)
        self._serve_status = Remembered(
            partial(_ask_serve, setup.names), lambda said: SERVE_STATUS_S if said[0] else SERVE_STARTS_S
        )
        front.readiness.add("serve", self._serve_status)
        await front.upstream.start()
        self._server = HttpServer(build_app(front), setup.settings.host, setup.port)
        begin = asyncio.create_task(self._begin())
        # Beside others on this port it would refuse, as long as it knows no replica, what they answer.
        await asyncio.wait([begin], timeout=OPEN_WITHIN_S)
        await self._server.start()
        self._tasks = [begin, asyncio.create_task(self._look())]

    async def _begin(self) -> None:
        try:
            await self._front.gate.start()
        except Cosmos3Error as error:
            self._failure = error
            log.error("gateway_cannot_start", code=error.stable_code, reason=error.detail)
        self._upkeep.start()
        await self._fleet.start()
        await self._fleet.first_view()
        memory.freeze_started()
        log.info("gateway_started", port=self._server.port)

    async def _look(self) -> None:
        """Keep the report fresh for the registry, and close the port once the service has drained."""
        quiet_since: float | None = None
        drains_since: float | None = None
        while True:
            self._report = await ready_report(self._front)
            idle = self._fleet.draining and not self._front.in_flight
            now = self._front.clock()
            drains_since = (drains_since or now) if self._fleet.draining else None
            if drains_since is not None and now - drains_since >= self._setup.settings.drain_timeout_s:
                self._cut()
            quiet_since = (quiet_since or now) if idle else None
            if quiet_since is not None and now - quiet_since >= QUIET_S and not self._stopped:
                self._stopped = True
                await self._server.stop(HTTP_GRACE_S)
            await asyncio.sleep(REPORT_S)

    # ---- for the registry and for Serve -----------------------------------------------------------------------------

    def status(self) -> GatewayStatus:
        checks = self._report.get("checks", [])
        failure = self._failure
        return GatewayStatus(
            gateway=self.name,
            address=self._address,
            port=self._server.port,
            pid=os.getpid(),
            ready=self._report.get("status") == "ready",
            waiting=tuple(check["name"] for check in checks if not check["ok"]),
            in_flight=self._front.in_flight,
            answers=self._front.answers,
            asked_s=self._front.asked_s,
            ended=self._fleet.ended,
            failure=failure and {"code": failure.stable_code, "detail": failure.detail, "remedy": failure.remedy},  # type: ignore[arg-type]
            report=self._report,
        )

    async def __del__(self) -> None:  # Serve awaits it before it ends the replica
        """Leave in order. Where the whole service drains, that had its time already."""
        if getattr(self, "_tasks", None) is None:
            return  # it never began
        if not (self._fleet.draining or self._stopped):
            await self._leave(self._setup.settings.drain_timeout_s)
        self._stopped = True
        await self._server.stop(HTTP_GRACE_S)
        for task in self._tasks:
            task.cancel()
        await self._upkeep.close()
        await self._front.router.leases.flush(self._front.clock())
        await self._fleet.stop()
        await self._front.upstream.close()
        await self._front.gate.close()

    def _cut(self) -> None:
        if not self._front.over:
            log.warning("drain_incomplete", in_flight=self._front.in_flight)
            self._front.cut()

    async def _leave(self, timeout_s: float) -> None:
        """The other gateways take what comes to the port; what is here is answered, on connections that then end."""
        log.info("gateway_leaves", in_flight=self._front.in_flight)
        self._server.leave()
        await asyncio.sleep(min(LINGER_S, timeout_s))
        try:
            async with asyncio.timeout(max(0.0, timeout_s - LINGER_S)):
                await self._front.idle.wait()
        except TimeoutError:
            self._cut()

    async def check_health(self) -> None:
        """Serve replaces this replica when its HTTP server ended, or when it can never become ready."""
        if self._failure is not None:
            raise RuntimeError(self._failure.detail)
        if not (self._server.alive or self._stopped):
            raise RuntimeError("the HTTP server has ended")


async def _ask_serve(names: Names) -> tuple[bool, str]:
    """Whether Serve says that both applications run."""

    def ask() -> tuple[bool, str]:
        from ray import serve

        found = serve.status().applications
        states = {name: str(getattr(found.get(name), "status", "missing")) for name in (names.gateways, names.replicas)}
        return serve_verdict(*(state.rpartition(".")[2] for state in states.values()))

    return await asyncio.to_thread(ask)


def serve_verdict(gateways: str, replicas: str) -> tuple[bool, str]:
    """What Serve's two states mean for a gateway that answers.

    Whoever is being replaced leaves its application deploying or unhealthy while others serve. Gateways are replaced
    beside running replicas; where both deploy, the service starts.
    """
    serving = replicas in ("RUNNING", "DEPLOYING", "UNHEALTHY")
    renewed = gateways == "DEPLOYING" and replicas == "RUNNING"
    return (gateways == "RUNNING" and serving) or renewed, f"gateways {gateways}, replicas {replicas}"
