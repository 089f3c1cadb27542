"""Which sockets a service listens on, by role, address and port, and what the tables of the handbook say of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import grpc
import httpx
import psutil

DOCS = Path(__file__).parents[2] / "docs"
AGENT_PORT = 52365
# Ray's agent gives up its fixed port where another cluster of the machine has it.
MAY_BE_GONE = ("Ray agent", "loopback", str(AGENT_PORT))

# What gives a process away in its command line, first match counts.
ROLES = (
    ("ray::DashboardAgent", "Ray agent"),
    ("ray::RuntimeEnvAgent", "Ray runtime environment agent"),
    ("ray::ServeController", "Serve controller"),
    ("ray::FleetActor", "registry"),
    (":text_guard", "text guard replica"),
    (":ingress", "ingress replica"),
    (":gateway", "gateway"),
    (":replica", "replica"),
    ("ray::ServeReplica", "model replica"),
    ("/gcs_server", "Ray GCS"),
    ("/raylet", "raylet"),
    ("/monitor.py", "Ray monitor"),
    ("/dashboard.py", "Ray API server"),
    ("vllm", "engine"),
    ("cosmos3_serve", "service"),
    ("-m support.", "service"),  # the product's, over doubles
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

Where = tuple[str, str, str]  # process, address, port


def documented(page: str, heading: str) -> list[dict[str, str]]:
    """The rows of the table under a heading of a page of docs/."""
    section = (DOCS / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    head, rows = lines[0], lines[2:]
    names = [cell.strip() for cell in head.strip("|").split("|")]
    return [dict(zip(names, (cell.strip() for cell in row.strip("|").split("|")), strict=True)) for row in rows]


def place(row: dict[str, str]) -> Where:
    return row["process"], row["address"], row["port"].strip("`")


class Listener:
    """One socket that a process of a service listens on."""

    def __init__(self, process: psutil.Process, address: str, port: int) -> None:
        command = " ".join(process.cmdline())
        self.role = next((role for mark, role in ROLES if mark in command), command[:80])
        self.port = port
        address = address.removeprefix("::ffff:")
        self.address = {"127.0.0.1": "loopback", "::1": "loopback", "0.0.0.0": "all", "::": "all"}.get(address, address)

    def where(self, public_port: int) -> Where:
        if self.port == public_port:
            return self.role, "--host", "--port"
        return self.role, self.address, str(AGENT_PORT) if self.port == AGENT_PORT else "free"

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


def listeners(pid: int) -> list[Listener]:
    """Every listening TCP socket of a process and of all that it started."""
    own = psutil.Process(pid)
    return [
        Listener(process, connection.laddr.ip, connection.laddr.port)
        for process in (own, *own.children(recursive=True))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]


def seen_by(found: list[Listener], url: str) -> Counter[Where]:
    """How often each kind of socket is listened on by a service whose public port is that of `url`."""
    public = int(url.rsplit(":", 1)[1])
    return Counter(listener.where(public) for listener in found)


def ray_token(pid: int) -> str:
    """Ray's own token, from the file that the children of a service are told of."""
    for child in psutil.Process(pid).children():
        path = child.environ().get("RAY_AUTH_TOKEN_PATH")
        if path:
            assert Path(path).stat().st_mode & 0o777 == 0o600
            return Path(path).read_text()
    raise AssertionError("no child knows a token")


def check_grpc(listener: Listener, token: str) -> None:
    """Refused without Ray's token, answered with it."""
    assert listener.grpc(None) == {"UNAUTHENTICATED"}, listener.role
    assert listener.grpc(token) - {"UNAUTHENTICATED"}, listener.role
