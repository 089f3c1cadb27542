"""Every socket that the service listens on is in the operations page, with the protection that the page claims.

With guardrails on there is one more replica: `test_guardrails.py` compares that one.
"""

import re
from collections import Counter

import httpx
import pytest
from support.ports import MAY_BE_GONE, Listener, check_grpc, documented, place, seen_by
from support.ports import listeners as listeners_of
from support.ports import ray_token as token_of

from cosmos3_serve.generator.local import LocalGenerator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

TABLE = [row for row in documented("operations.md", "Listening ports") if row["process"] != "text guard replica"]


@pytest.fixture(scope="module")
def listeners(generator: LocalGenerator) -> list[Listener]:
    return listeners_of(generator.pid)


@pytest.fixture(scope="module")
def ray_token(generator: LocalGenerator) -> str:
    return token_of(generator.pid)


def test_the_table_and_the_sockets_are_the_same(generator: LocalGenerator, listeners: list[Listener]) -> None:
    seen, table = seen_by(listeners, generator.url), Counter(map(place, TABLE))
    assert set(table) - set(seen) <= {MAY_BE_GONE}
    assert seen - table == Counter()
    assert {k for k in seen if k[1] not in ("loopback", "--host")} == {
        ("model replica", "all", "free"),
        ("ingress replica", "all", "free"),
    }


def test_each_socket_asks_for_what_the_table_says(
    generator: LocalGenerator, listeners: list[Listener], ray_token: str
) -> None:
    public = int(generator.url.rsplit(":", 1)[1])
    asked: set[str] = set()
    for listener in listeners:
        where = listener.where(public)
        claims = {row["asks for"] for row in TABLE if place(row) == where}
        assert len(claims) == 1, where
        claim = claims.pop()
        asked.add(claim)
        if claim == "Ray's token (gRPC)":
            check_grpc(listener, ray_token)
        elif claim == "Ray's token (HTTP)":
            assert listener.http("/") == 401, where
        elif claim == "our bearer token":
            assert {listener.http(path) for path in ("/", "/health", "/-/routes")} == {401}
        else:
            assert claim == "nothing: read-only metrics of Ray" and listener.address == "loopback"
            answer = httpx.get(f"http://127.0.0.1:{listener.port}/metrics", timeout=5).text
            assert answer.startswith("# HELP") and not re.search("prompt|right-token", answer)
    assert len(asked) >= 3


def test_rays_own_token_is_not_ours(generator: LocalGenerator, ray_token: str) -> None:
    assert ray_token != generator.token
    answer = httpx.get(f"{generator.url}/health", headers={"Authorization": f"Bearer {ray_token}"})
    assert answer.status_code == 401
