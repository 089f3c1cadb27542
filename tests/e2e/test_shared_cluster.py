"""Services that join one Ray cluster: two live beside each other, and one of a name that is taken is refused.

The engine is a double (`stub_engine.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest
from support.fleet import fake_engine, until
from support.gateway import CHAT, text
from support.processes import left_after, new_mark
from support.ray_nodes import RayNodes
from support.service import shared_cache

from cosmos3_serve.reasoner.local import LocalReasoner
from cosmos3_serve.settings import REASONER_TOKEN_ENV

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

TOKEN = {REASONER_TOKEN_ENV: "a-token-of-the-cluster"}


class Joined(LocalReasoner):
    """A reasoner on the cluster; its engines are stubs."""

    def __init__(self, nodes: RayNodes, cache_dir: Path, python: str, **environ: str) -> None:
        settings = {"COSMOS3_VLLM_PYTHON": python, "COSMOS3_REASONER_DRAIN_TIMEOUT_S": "5"}
        super().__init__({**TOKEN, **settings, **nodes.reach, **environ}, cache_dir)

    def ask(self) -> httpx.Response:
        return httpx.post(self.url + CHAT, json=text(), headers=self.headers, timeout=60)


@pytest.fixture
def mark() -> Iterator[Mapping[str, str]]:
    found = new_mark()
    yield found
    assert left_after(found) == {}


def test_two_services_share_a_cluster_and_a_third_of_a_taken_name_is_refused(
    mark: Mapping[str, str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cache, python = shared_cache(tmp_path_factory), fake_engine(tmp_path, "stub_engine.py")
    with RayNodes(environ={**TOKEN, **mark}) as nodes:
        first = Joined(nodes, cache, python, **mark)
        second = Joined(nodes, cache, python, **mark, COSMOS3_REASONER_NAME="second")
        with first:
            assert first.ask().status_code == 200
            third = Joined(nodes, cache, python, **mark).launch()
            assert third.wait(120) == 3
            assert "service_running" in third.log_tail() and "--name" in third.log_tail()
            with second:
                pids = [service.ready["replicas"][0]["engine"]["engine_pid"] for service in (first, second)]
                assert len(set(pids)) == 2
                assert [service.ask().status_code for service in (first, second)] == [200, 200]
                assert first.headers == second.headers, "the same token: what keeps them apart is their names"
            assert first.ask().status_code == 200, "the second one took only what was its own"
            # One that was killed leaves its applications; its name is free, and the next one takes its place.
            first.kill()
            until(lambda: first.exit_code is not None, 30)
        with Joined(nodes, cache, python, **mark) as again:
            assert again.ask().status_code == 200
