"""A service of the core alone: real ledger, real files, a scripted engine and a clock that stands still."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.fake_engine import FakeEngine
from support.fakes import FakeClock

from cosmos3_serve.contract.parse import parse_batch
from cosmos3_serve.contract.profile import EngineProfile, diffusers_profile
from cosmos3_serve.contract.views import BatchView
from cosmos3_serve.generator.coordinator import Coordinator
from cosmos3_serve.generator.guardrails.gate import TextGuardPort
from cosmos3_serve.generator.ledger.ledger import Ledger
from cosmos3_serve.generator.queue.staging import Stager
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.storage.directory import DirectoryStore
from cosmos3_serve.storage.roots import AllowedRoots

PROFILE = diffusers_profile("0.0.0", tiny=True)
REVISION = "a" * 40


class Counter:
    """An observer that remembers what it was told."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def coalesced(self, size: int) -> None:
        self.seen.append(("coalesced", size))

    def inference(self, size: int) -> None:
        self.seen.append(("inference", size))

    def phase(self, name: str, seconds: float) -> None:
        self.seen.append(("phase", name))

    def sample_state(self, state: str) -> None:
        self.seen.append(("state", state))

    def guardrail(self, check: str, decision: str) -> None:
        self.seen.append(("guardrail", check, decision))

    def bytes(self, direction: str, count: int) -> None:
        self.seen.append(("bytes", direction, count))


@dataclass
class Core:
    """One running core; `coordinator` is the product, the rest is the world around it."""

    root: Path
    engine: FakeEngine
    coordinator: Coordinator
    clock: FakeClock
    bucket: DirectoryStore
    counter: Counter = field(default_factory=Counter)

    async def submit(
        self, *samples: str | dict[str, Any], id: str = "r1", tenant: str = "t", detached: bool = False
    ) -> BatchView:
        """Submit text2image samples by name, or as they are."""
        body = {"request_id": id, "samples": [image(s) if isinstance(s, str) else s for s in samples]}
        return await self.coordinator.submit(parse_batch(body, max_samples=2000), tenant=tenant, detached=detached)

    async def finish(self, id: str = "r1", tenant: str = "t") -> dict[str, Any]:
        """The response of a batch, once it ended."""
        await self.coordinator.wait_ended(id, tenant=tenant)
        response: dict[str, Any] = json.loads(await self.response(id, tenant))
        return response

    async def response(self, id: str = "r1", tenant: str = "t") -> bytes:
        """The response as it is stored."""
        return await (await self.coordinator.response(id, tenant=tenant)).read()

    async def codes(self, id: str = "r1", tenant: str = "t") -> list[str]:
        view = await self.coordinator.view(id, tenant=tenant)
        return [sample.code or sample.state.value for sample in view.samples]


def image(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "prompt": "a cat", "num_frames": 1, **fields}


MakeCore = Callable[..., Awaitable[Core]]


async def start_core(
    base: Path,
    clock: FakeClock,
    *,
    engine: FakeEngine | None = None,
    profile: EngineProfile = PROFILE,
    wait: bool = True,
    bucket: DirectoryStore | None = None,
    guard: TextGuardPort | None = None,
    **settings: Any,
) -> Core:
    """Start a core below `base`; started again, it finds what the one before left there."""
    root = base / "out"
    config = GeneratorSettings(
        **{"output_path": root, "guardrails": False, "checkpoint": "tiny", "batch_wait_timeout_s": 0, **settings}
    )
    store = bucket or DirectoryStore(base / "bucket")
    counter = Counter()
    ledger = Ledger(root, clock)
    stager = Stager(
        root,
        AllowedRoots.parse(config.allowed_s3_roots),
        max_bytes=config.max_input_bytes,
        timeout_s=config.input_timeout_s,
        store_of=lambda uri: store,
        observer=counter,
    )
    engine = engine or FakeEngine(root, limit=config.max_batch_size)
    coordinator = Coordinator(
        config, profile, engine, ledger, stager, clock, source_revision=REVISION, observer=counter, guard=guard
    )
    await coordinator.start()
    if wait:
        await coordinator.ready()
    return Core(root, engine, coordinator, clock, store, counter)
