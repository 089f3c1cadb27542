"""A running core of the generator for each test that asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.core import Core, MakeCore, start_core
from support.fakes import FakeClock


@pytest.fixture
async def make_core(tmp_path: Path) -> AsyncIterator[MakeCore]:
    """Start a core on the test's output root, as often as needed: each finds what the one before left there."""
    cores: list[Core] = []
    clock = FakeClock()

    async def make(**options: Any) -> Core:
        core = await start_core(tmp_path, clock, **options)
        cores.append(core)
        return core

    yield make
    for core in cores:
        await core.coordinator.close()


@pytest.fixture
async def core(make_core: MakeCore) -> Core:
    return await make_core()
