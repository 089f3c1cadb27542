"""Services that several end-to-end modules share."""

from collections.abc import Iterator

import pytest
from support.fleet import need_engine
from support.real_fleet import RealFleet
from support.service import service_fixture, shared_cache

from cosmos3_serve.generator.local import LocalGenerator


@pytest.fixture(scope="session")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGenerator]:
    yield from service_fixture(tmp_path_factory)


@pytest.fixture(scope="session")
def reasoner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    """Real vLLM, the dearest thing that tests start: once, for `test_reasoner_answers` and, after it, the killing in
    `test_reasoner_deaths`."""
    need_engine()
    with RealFleet(shared_cache(tmp_path_factory), tmp_path_factory.mktemp("tokens") / "tokens") as running:
        yield running
