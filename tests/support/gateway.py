"""A gateway on loopback over stub replicas: the real app, router, media gate, fleet core and HTTP server, no Ray."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import structlog
from support import clips
from support.stub_replica import StubReplica

from cosmos3_serve.media.refusal import Refused
from cosmos3_serve.reasoner.fleet.core import FleetCore, InProcessFleet
from cosmos3_serve.reasoner.fleet.member import HeldMedia, Load, Service
from cosmos3_serve.reasoner.fleet.view import FleetPort
from cosmos3_serve.reasoner.gateway.app import build_app
from cosmos3_serve.reasoner.gateway.assemble import add_checks, assemble
from cosmos3_serve.reasoner.gateway.front import Front
from cosmos3_serve.reasoner.gateway.upkeep import Upkeep
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.probe import Probed, Prober
from cosmos3_serve.reasoner.media.worker import answer
from cosmos3_serve.reasoner.sessions.policy import AffinityRules, Mode
from cosmos3_serve.reasoner.setup import MODEL_NAME, ReasonerSetup, ServedModel
from cosmos3_serve.reasoner.tls import identity_of
from cosmos3_serve.service import logs
from cosmos3_serve.service.http_server import HttpServer
from cosmos3_serve.service.tokens import TokenBook
from cosmos3_serve.settings import ReasonerSettings

TOKEN, OTHER_TOKEN, SECRET = "token-of-one", "token-of-two", "cluster-secret-of-the-test"
CHAT = "/v1/chat/completions"


class InProcessProber(Prober):
    """The real probe without its process: these tests ask how media travels, not what hostile media does."""

    async def probe(self, path: Path, kind: Any, out: Path, tenant: str = "") -> Probed:
        job = {"path": str(path), "kind": kind, "out": str(out)}
        said = await asyncio.to_thread(answer, job, self._limits, self._decoder)
        if "refused" in said:
            raise Refused(**said["refused"])
        served = said["served"]
        return Probed(MediaInfo.from_dict(said["info"]), MediaInfo.from_dict(served) if served else None)


@dataclass
class Gateway:
    """One gateway process's worth, and its address."""

    front: Front
    upkeep: Upkeep
    server: HttpServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"


@dataclass
class World:
    """Args: core: the fleet's registry and table; away on demand through `fleet`."""

    root: Path
    settings: ReasonerSettings
    core: FleetCore
    fleet: InProcessFleet
    replicas: list[StubReplica] = field(default_factory=list)
    gateways: list[Gateway] = field(default_factory=list)
    places: dict[str, Any] = field(default_factory=dict)
    slots: int = 8
    held_items: int = 64
    secret: str = SECRET

    @property
    def url(self) -> str:
        return self.gateways[0].url

    @property
    def front(self) -> Front:
        return self.gateways[0].front

    def client(self, token: str = TOKEN, **options: Any) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token}", **options.pop("headers", {})}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30, trust_env=False, **options)

    async def add_replica(self) -> StubReplica:
        stub = StubReplica(f"r{len(self.replicas)}", self.secret)
        await stub.start(tls=serving(self.secret) if self.settings.replica_tls else None)
        self.replicas.append(stub)
        await self.register(stub)
        return stub

    async def register(self, stub: StubReplica) -> None:
        held = HeldMedia(10**10, self.held_items)
        # As a reporter does: one more than wanted is told to ask again until the others were heard.
        while (place := await self.core.register(Service(stub.url, self.slots, held))) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        self.places[stub.name] = place

    async def add_gateway(self) -> Gateway:
        name = f"gateway-{len(self.gateways)}"
        model = ServedModel("tiny", "r", "d", "random", self.root / "nowhere", 16384)
        setup = ReasonerSetup(self.settings, model, 0, self.secret)
        port = FleetPort(self.fleet, self.secret)
        tokens = self.root / "tokens"
        tokens.write_text(f"one:{TOKEN}\ntwo:{OTHER_TOKEN}\n")
        front = assemble(setup, port, name, TokenBook(None, tokens))
        prober = InProcessProber(front.limits, front.gate._prober._decoder)
        front.gate._prober = front.gate.screen._prober = prober
        upkeep = Upkeep(front)
        add_checks(front, upkeep.canary)
        await front.upstream.start()
        await front.gate.start()
        server = HttpServer(build_app(front), "127.0.0.1", 0)
        await server.start()
        upkeep.start()
        await port.start()
        gateway = Gateway(front, upkeep, server)
        self.gateways.append(gateway)
        return gateway

    async def seen(self) -> None:
        """Until every gateway knows every registered replica."""
        for gateway in self.gateways:
            await soon(lambda front=gateway.front: len(front.ready_members()) >= len(self.places))

    async def beat(self) -> None:
        while True:
            running = {stub.name: stub.running for stub in self.replicas}
            for name, place in list(self.places.items()):
                await self.core.beat(place, Load(running.get(name, 0), 0))
            await asyncio.sleep(0.2)

    def by_name(self, replica: str) -> StubReplica:
        """The stub in a slot such as `replica-0`."""
        (name,) = [name for name, place in self.places.items() if place.id == replica]
        return next(stub for stub in self.replicas if stub.name == name)

    async def close(self) -> None:
        for gateway in self.gateways:
            await gateway.server.stop(0.1)
            await gateway.upkeep.close()
            await gateway.front.fleet.stop()
            await gateway.front.upstream.close()
            await gateway.front.gate.close()
        for stub in self.replicas:
            stub.gate.set()
            await stub.stop()


@asynccontextmanager
async def world(
    root: Path,
    *,
    replicas: int = 2,
    gateways: int = 1,
    slots: int = 8,
    held_items: int = 64,
    secret: str = SECRET,
    real: Sequence[Service] = (),
    **settings: Any,
) -> AsyncIterator[World]:
    """Args: real: replicas that run elsewhere and know `secret`, instead of stubs."""
    if real:
        replicas = len(real)
    found = ReasonerSettings(
        **{"store_dir": root / "store", "workers": replicas, "gateways": gateways, "log_level": "error", **settings}
    )
    logs.configure(found.log_level)
    rules = AffinityRules(ttl_s=found.session_ttl_s, mode=Mode(found.session_mode))
    core = FleetCore(rules, replicas)
    here = World(root, found, core, InProcessFleet(core), slots=slots, held_items=held_items, secret=secret)
    try:
        for number, service in enumerate(real):
            here.places[f"real-{number}"] = await core.register(service)
        for _ in range(0 if real else replicas):
            await here.add_replica()
        beats = asyncio.create_task(here.beat())
        try:
            for _ in range(gateways):
                await here.add_gateway()
            await here.seen()
            await canaries_over(here)
            yield here
        finally:
            beats.cancel()
    finally:
        await here.close()
        structlog.reset_defaults()  # what was configured may write to a file that this test's end closes


async def canaries_over(here: World) -> None:
    """The canaries of all gateways have asked: what comes afterwards is the test's."""
    for gateway in here.gateways:
        canary = gateway.upkeep.canary
        await soon(lambda canary=canary: canary.verdict()[0] and not canary._running, 60)
    for stub in here.replicas:
        stub.asked.clear()
        stub.encoded.clear()
        stub.headers.clear()
        stub.most_running = 0


def serving(secret: str) -> ssl.SSLContext:
    """As an engine serves: from files."""
    identity = identity_of(secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = Path(folder) / "key.pem", Path(folder) / "certificate.pem"
        key.write_text(identity.key)
        certificate.write_text(identity.certificate)
        context.load_cert_chain(certificate, key)
    return context


async def soon(true: Callable[[], object], within_s: float = 10) -> None:
    """Until it is true."""
    async with asyncio.timeout(within_s):
        while True:
            if true():
                return
            await asyncio.sleep(0.01)


def text(words: str = "What is this?", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL_NAME, "messages": [{"role": "user", "content": words}], **fields}


def data_url(data: bytes, mime: str = "video/mp4") -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def video(number: int = 0) -> bytes:
    """Videos that differ."""
    return clips.clip(frames=8 + number)


def about(url: str, words: str = "What is this?", **fields: Any) -> dict[str, Any]:
    """A question about a video."""
    content = [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": words}]
    return {"model": MODEL_NAME, "messages": [{"role": "user", "content": content}], **fields}


def events(body: str) -> list[Any]:
    """The events of a stream: parsed, `[DONE]` as it is."""
    lines = [line.removeprefix("data: ") for line in body.split("\n\n") if line.strip()]
    return [line if line.strip() == "[DONE]" else json.loads(line) for line in lines]
