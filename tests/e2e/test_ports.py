"""Every socket that the service listens on is in the operations page, with the protection that the page claims."""

import re
from collections import Counter
from pathlib import Path

import grpc
import httpx
import psutil
import pytest

from cosmos3_serve.generator.local import LocalGenerator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"

# What gives a process away in its command line, first match counts.
ROLES = (
    ("ray::DashboardAgent", "Ray agent"),
    ("ray::RuntimeEnvAgent", "Ray runtime environment agent"),
    ("ray::ServeController", "Serve controller"),
    (":ingress", "ingress replica"),
    ("ray::ServeReplica", "model replica"),
    ("/gcs_server", "Ray GCS"),
    ("/raylet", "raylet"),
    ("/monitor.py", "Ray monitor"),
    ("/dashboard.py", "Ray API server"),
    ("cosmos3_serve", "service"),
)
# One call that each gRPC server knows: a server asks for the token only about calls that it knows.
CALLS = (
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.ObjectManagerService/Push",
    "/ray.rpc.LogService/ListLogs",
    "/ray.rpc.ReporterService/GetTraceback",
    "/ray.serve.ASGIService/HandleRequest",
)


def documented() -> list[dict[str, str]]:
    """The rows of the table under "Listening ports"."""
    section = PAGE.read_text().split("\n## Listening ports\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    head, rows = lines[0], lines[2:]
    names = [cell.strip() for cell in head.strip("|").split("|")]
    return [dict(zip(names, (cell.strip() for cell in row.strip("|").split("|")), strict=True)) for row in rows]


class Listener:
    def __init__(self, process: psutil.Process, address: str, port: int) -> None:
        command = " ".join(process.cmdline())
        self.role = next((role for mark, role in ROLES if mark in command), command[:80])
        self.port = port
        address = address.removeprefix("::ffff:")
        self.address = {"127.0.0.1": "loopback", "::1": "loopback", "0.0.0.0": "all", "::": "all"}.get(address, address)

    def grpc(self, token: str | None) -> set[str]:
        """Status names that the known calls come back with."""
        found = set()
        metadata = [("authorization", f"Bearer {token}")] if token else []
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            for name in CALLS:
                call = channel.unary_unary(name, request_serializer=bytes, response_deserializer=bytes)
                try:
                    call(b"", timeout=5, metadata=metadata)
                    found.add("OK")
                except grpc.RpcError as error:
                    found.add(error.code().name)
        return found - {"UNIMPLEMENTED"}

    def http(self, path: str) -> int:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=5).status_code


@pytest.fixture(scope="module")
def listeners(generator: LocalGenerator) -> list[Listener]:
    own = psutil.Process(generator.pid)
    return [
        Listener(process, connection.laddr.ip, connection.laddr.port)
        for process in (own, *own.children(recursive=True))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]


@pytest.fixture(scope="module")
def ray_token(generator: LocalGenerator) -> str:
    for child in psutil.Process(generator.pid).children():
        path = child.environ().get("RAY_AUTH_TOKEN_PATH")
        if path:
            assert Path(path).stat().st_mode & 0o777 == 0o600
            return Path(path).read_text()
    raise AssertionError("no child knows a token")


def kind(listener: Listener, public_port: int) -> tuple[str, str, str]:
    if listener.port == public_port:
        return listener.role, "--host", "--port"
    return listener.role, listener.address, "52365" if listener.port == 52365 else "free"


def test_the_table_and_the_sockets_are_the_same(generator: LocalGenerator, listeners: list[Listener]) -> None:
    public = int(generator.url.rsplit(":", 1)[1])
    seen = Counter(kind(listener, public) for listener in listeners)
    table = Counter((row["process"], row["address"], row["port"].strip("`")) for row in documented())
    # Ray's agent gives up its fixed port where another cluster of the machine has it.
    gone = set(table) - set(seen)
    assert gone <= {("Ray agent", "loopback", "52365")}
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
        where = kind(listener, public)
        rows = [r for r in documented() if (r["process"], r["address"], r["port"].strip("`")) == where]
        claims = {row["asks for"] for row in rows}
        assert len(claims) == 1, where
        claim = claims.pop()
        asked.add(claim)
        if claim == "Ray's token (gRPC)":
            assert listener.grpc(None) == {"UNAUTHENTICATED"}, where
            assert listener.grpc(ray_token) - {"UNAUTHENTICATED"}, where
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
