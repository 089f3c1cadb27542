"""The reasoner as users run it, and a look behind its gateways: two real vLLM servers with the tiny checkpoint (random
weights), two gateways on one port, real Ray."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from support import clips
from support.gateway import CHAT
from support.processes import new_mark

from cosmos3_serve.reasoner.local import LocalReasoner
from cosmos3_serve.reasoner.replica_secret import SECRET_ENV
from cosmos3_serve.reasoner.setup import SECRET_HEADER

TOKENS = {"one": "token-of-tenant-one", "two": "token-of-tenant-two"}
ASKED = {"max_completion_tokens": 1, "temperature": 0}
# The text of all answers is the same; what tells them apart are their logprobs.
TOLD = {**ASKED, "logprobs": True, "top_logprobs": 5}
SETTINGS = {
    "COSMOS3_REASONER_WORKERS": "2",
    "COSMOS3_REASONER_GATEWAYS": "2",
    "COSMOS3_REASONER_QUEUE_TIMEOUT_S": "600",
    # vLLM's own, for one test: a replica's processor cache can be emptied as if others' videos had pushed ours out.
    "VLLM_SERVER_DEV_MODE": "1",
}


class RealFleet(LocalReasoner):
    def __init__(self, cache_dir: Path, tokens: Path) -> None:
        tokens.write_text("".join(f"{name}:{token}\n" for name, token in TOKENS.items()))
        self.mark = new_mark()
        super().__init__({**self.mark, **SETTINGS, "COSMOS3_REASONER_TOKEN_FILE": str(tokens)}, cache_dir)
        self._secret = ""

    @property
    def secret(self) -> str:
        """What replicas ask for; read while they live."""
        if not self._secret:
            self._secret = self.engine("replica-0").environ()[SECRET_ENV]
        return self._secret

    @property
    def gateways(self) -> list[int]:
        """Process ids."""
        return list(self.ready["gateway_pids"])

    def engine(self, replica: str) -> psutil.Process:
        """The server of a replica, as it was when the service became ready."""
        (found,) = [r["engine"]["engine_pid"] for r in self.replicas if r["id"] == replica]
        return psutil.Process(found)

    def process(self, name: str) -> psutil.Process:
        """The one process of the service whose command line begins with this."""
        (found,) = [p for p in psutil.Process(self.pid).children(recursive=True) if _line(p).startswith(name)]
        return found

    def client(self, tenant: str = "one", **options: Any) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {TOKENS[tenant]}"}
        options = {"limits": httpx.Limits(max_connections=100), "timeout": 600, **options}
        return httpx.AsyncClient(base_url=self.url, headers=headers, **options)

    def inside(self) -> httpx.AsyncClient:
        """A client that the replicas answer."""
        return httpx.AsyncClient(headers={SECRET_HEADER: self.secret}, timeout=60)

    @asynccontextmanager
    async def door(self, gateway: int) -> AsyncIterator[httpx.AsyncClient]:
        """A client with one connection, which goes to this gateway: the kernel picks, so we knock until it does."""
        one = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=None)
        for _ in range(100):
            async with self.client(limits=one) as http:
                if await _far_end(http) == gateway:
                    yield http
                    assert await _far_end(http) == gateway, "the connection did not last"
                    return
        raise AssertionError(f"no connection to gateway {gateway}")

    async def figures(self) -> dict[str, Counter[str]]:
        """Replica -> vLLM's metric -> its value over all labels."""
        async with self.inside() as http:
            answers = [(r["id"], await http.get(f"{r['url']}/metrics")) for r in self.replicas]
        return {replica: numbers(answer.text, "vllm:") for replica, answer in answers}

    async def total(self, *names: str) -> float:
        """Sum of these metrics of vLLM over all replicas."""
        return sum(rows[f"vllm:{name}"] for rows in (await self.figures()).values() for name in names)

    async def processed(self) -> float:
        """Videos and images that replicas had to process, since they started."""
        return await self.total("mm_cache_queries_total") - await self.total("mm_cache_hits_total")

    async def idle(self, within_s: float = 120) -> None:
        """Until vLLM counts nothing that runs or waits."""

        async def quiet() -> bool:
            return not await self.total("num_requests_running", "num_requests_waiting")

        await until(quiet, within_s)

    async def ask(
        self, bodies: Sequence[dict[str, Any]], headers: Sequence[dict[str, str]] | None = None, width: int = 4
    ) -> list[httpx.Response]:
        """All answers, at most `width` questions at once: by default no replica is ever full."""
        gate = asyncio.Semaphore(width)
        async with self.client() as http:

            async def one(body: dict[str, Any], head: dict[str, str]) -> httpx.Response:
                async with gate:
                    answer = await http.post(CHAT, json=body, headers=head)
                assert answer.status_code == 200, answer.text
                return answer

            return await asyncio.gather(*map(one, bodies, headers or [{}] * len(bodies)))


def video(number: int, frames: int = 12, size: tuple[int, int] = (128, 96)) -> str:
    data = clips.clip(frames=frames, fps=4, size=size)
    # A free box behind the content makes as many contents as are asked for out of one clip.
    return "data:video/mp4;base64," + base64.b64encode(data + b"\0\0\0\x0cfree" + number.to_bytes(4, "big")).decode()


def numbers(exposition: str, prefix: str) -> Counter[str]:
    """Metric without labels -> the sum of its values."""
    rows = Counter[str]()
    for line in exposition.splitlines():
        if line.startswith(prefix):
            rows[line.partition("{")[0].partition(" ")[0]] += float(line.rpartition(" ")[2])  # type: ignore[assignment]
    return rows


async def until(true: Callable[[], Awaitable[object]], within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while True:
            if await true():
                return
            await asyncio.sleep(0.05)


def home_of(answer: httpx.Response) -> str:
    return str(answer.headers["x-cosmos3-replica"])


def session_of(answer: httpx.Response) -> str:
    return str(answer.headers["x-cosmos3-session"])


async def in_flight(http: httpx.AsyncClient) -> int:
    """Questions of sessions that the gateway behind this door works on."""
    return sum(row["in_flight"] for row in (await http.get("/v1/sessions")).json()["data"])


async def retries(http: httpx.AsyncClient) -> float:
    """Second attempts of the gateway behind this door."""
    return numbers((await http.get("/metrics")).text, "cosmos3_reasoner_retries_total").total()


@contextmanager
def held_up(server: psutil.Process) -> Iterator[None]:
    """The server takes questions, and its engine does nothing."""
    engine = server.children(recursive=True)
    for process in engine:
        process.suspend()
    try:
        yield
    finally:
        for process in engine:
            with suppress(psutil.NoSuchProcess):
                process.resume()


async def _far_end(http: httpx.AsyncClient) -> int:
    """Which process of ours the client's connection leads to."""
    answer = await http.get("/health")
    here = answer.extensions["network_stream"].get_extra_info("client_addr")
    for pid in {c.pid for c in psutil.net_connections("tcp") if c.raddr and c.raddr[:2] == here[:2]}:
        return pid or 0
    return 0


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
