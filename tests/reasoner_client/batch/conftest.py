from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.gateway import world
from support.questions import Bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with world(tmp_path, replicas=2) as here:
        yield Bench(tmp_path, here)
