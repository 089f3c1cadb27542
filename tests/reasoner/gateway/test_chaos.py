"""Trouble of every kind at once: each question ends with its own answer or a typed error, and then all is well again.

Replay: COSMOS3_CHAOS_SEED=7 python -m pytest -s tests/reasoner/gateway/test_chaos.py
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import httpx
import pytest
from support import gateway as module
from support.chaos import TENANTS, Chaos, EchoReplica
from support.gateway import world

SHORT_S, LONG_S = 6.0, 30.0
BACK_S = 60.0


def seeds(default: range) -> list[int]:
    one = os.environ.get("COSMOS3_CHAOS_SEED")
    return [int(one)] if one else list(default)


async def run(tmp_path: Path, seed: int, seconds: float) -> None:
    again = f"COSMOS3_CHAOS_SEED={seed} python -m pytest -s tests/reasoner/gateway/test_chaos.py"
    settings = {"answer_timeout_s": 2.0, "queue_timeout_s": 5.0, "queue_limit": 32}
    options = {"timeout": None, "trust_env": False, "limits": httpx.Limits(max_connections=100)}
    async with (
        world(tmp_path, replicas=4, gateways=2, slots=4, **settings) as here,
        httpx.AsyncClient(**options) as http,  # type: ignore[arg-type]
    ):
        chaos = Chaos(here, seed, http)
        clients = [asyncio.create_task(chaos.asks(name, n)) for name in TENANTS for n in range(8)]
        trouble = asyncio.create_task(chaos.trouble())
        await asyncio.sleep(seconds)
        chaos.stopped = True
        await trouble
        await chaos.heal()
        await asyncio.gather(*clients)
        print(f"seed {seed}: {dict(chaos.ends)}, {dict(chaos.faults)}")
        assert not chaos.wrong, "\n".join([*chaos.wrong[:20], f"replay: {again}"])
        assert chaos.ends["answered"] > 20, f"hardly anything was answered: {dict(chaos.ends)}; replay: {again}"
        for name in TENANTS:
            for gateway in here.gateways:
                async with asyncio.timeout(BACK_S):
                    words, count = "", 0
                    while words != "answered":
                        count += 1
                        words = await chaos.ask(gateway.url, name, f"after {name} {count}", False, {})


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", seeds(range(1)))
async def test_every_question_ends_with_its_answer_or_a_typed_error(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "StubReplica", EchoReplica)
    await run(tmp_path, seed, SHORT_S)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", seeds(range(1, 11)))
async def test_every_question_ends_with_its_answer_or_a_typed_error_long_lane(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "StubReplica", EchoReplica)
    await run(tmp_path, seed, LONG_S)
