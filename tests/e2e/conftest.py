"""Services that several end-to-end modules share."""

from collections.abc import Iterator

import pytest
from support.service import service_fixture

from cosmos3_serve.generator.local import LocalGenerator


@pytest.fixture(scope="session")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGenerator]:
    yield from service_fixture(tmp_path_factory)
