"""The reasoner as users run it, and a look behind its gateways: two real vLLM servers with the tiny checkpoint (random
weights), two gateways on one port, real Ray."""

from __future__ import annotations

import asyncio
import base64
import json
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

from cosmos3_serve.reasoner.engine.secret import SECRET_ENV
from cosmos3_serve.reasoner.local import LocalReasoner
from cosmos3_serve.reasoner.setup import SECRET_HEADER
from cosmos3_serve.reasoner.tls import pinned

TOKENS = {"one": "token-of-tenant-one", "two": "token-of-tenant-two"}
ASKED = {"max_completion_tokens": 1, "temperature": 0}
# The text of all answers is the same; what tells them apart are their logprobs.
TOLD = {**ASKED, "logprobs": True, "top_logprobs": 5}
STEP_TOKENS = 4_096  # of one step of an engine, and of its encoder cache
# An encoder cache holds at least the largest picture or video that the processor makes: 16,384 tokens by default.
_SIDE = 16 * 2  # of the pixels of a token: patches of 16, merged two by two, and of a video two frames
LARGEST = {
    "images_kwargs": {"size": {"shortest_edge": 65_536, "longest_edge": STEP_TOKENS * _SIDE**2}},
    "videos_kwargs": {"size": {"shortest_edge": 4_096, "longest_edge": 2 * STEP_TOKENS * _SIDE**2}},
}
SETTINGS = {
    "COSMOS3_REASONER_WORKERS": "2",
    "COSMOS3_REASONER_GATEWAYS": "2",
    "COSMOS3_REASONER_QUEUE_TIMEOUT_S": "600",
    "COSMOS3_REASONER_REPLICA_TLS": "1",  # `test_reasoner_quality` has a fleet without
    "COSMOS3_REASONER_HANG_TIMEOUT_S": "600",  # tests hold engines up
    # A small encoder cache and small steps: few and small videos are more than the one holds, and short prompts more
    # than the other.
    "COSMOS3_VLLM_ARGS": f"--max-num-batched-tokens={STEP_TOKENS} --mm-processor-kwargs='{json.dumps(LARGEST)}'",
    # vLLM's own, for one test: a replica's processor cache can be emptied as if others' videos had pushed ours out.
    "VLLM_SERVER_DEV_MODE": "1",
}


class RealFleet(LocalReasoner):
    """`settings`: environment variables over those of this module."""

    def __init__(self, cache_dir: Path, tokens: Path, **settings: str) -> None:
        tokens.write_text("".join(f"{name}:{token}\n" for name, token in TOKENS.items()))
        self.mark = new_mark()
        super().__init__({**self.mark, **SETTINGS, "COSMOS3_REASONER_TOKEN_FILE": str(tokens), **settings}, cache_dir)
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
        return httpx.AsyncClient(headers={SECRET_HEADER: self.secret}, timeout=60, verify=pinned(self.secret))

    @asynccontextmanager
    async def door(self, gateway: int) -> AsyncIterator[Door]:
        door = Door(self, gateway)
        try:
            yield door
        finally:
            await door.close()

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
        return sum((await self.processed_by()).values())

    async def processed_by(self) -> dict[str, float]:
        """Replica -> what it had to process."""
        rows = await self.figures()
        return {r: said["vllm:mm_cache_queries_total"] - said["vllm:mm_cache_hits_total"] for r, said in rows.items()}

    async def are_running(self, count: int) -> bool:
        """Whether vLLM counts so many questions that run or wait."""
        return await self.total("num_requests_running", "num_requests_waiting") == count

    async def idle(self, within_s: float = 120) -> None:
        """Until vLLM counts nothing that runs or waits."""
        await until(lambda: self.are_running(0), within_s)

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


class Door:
    """One connection to one gateway. The kernel picks who accepts a connection, so we knock until it is this one."""

    def __init__(self, fleet: RealFleet, gateway: int) -> None:
        self._fleet, self._gateway = fleet, gateway
        self._http: httpx.AsyncClient | None = None
        self._here: tuple[str, int] | None = None

    async def get(self, path: str) -> httpx.Response:
        return await self._ask("GET", path)

    async def post(self, path: str, **fields: Any) -> httpx.Response:
        return await self._ask("POST", path, **fields)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def _ask(self, method: str, path: str, **fields: Any) -> httpx.Response:
        http = await self._open()
        answer = await http.request(method, path, **fields)
        assert _near_end(answer) == self._here, "the connection ended between two requests"
        return answer

    async def _open(self) -> httpx.AsyncClient:
        one = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=None)
        for _ in range(100):
            if self._http is None:
                self._http = self._fleet.client(limits=one)
            here = _near_end(await self._http.get("/health"))
            # A gateway closes what is idle for a while: then we come from another port and may be anywhere.
            if here == self._here or _far_end(here) == self._gateway:
                self._here = here
                return self._http
            await self._http.aclose()
            self._http = None
        raise AssertionError(f"no connection to gateway {self._gateway}")


def _near_end(answer: httpx.Response) -> tuple[str, int]:
    host, port, *_ = answer.extensions["network_stream"].get_extra_info("client_addr")
    return host, port


def _far_end(near: tuple[str, int]) -> int | None:
    """The process that a connection of ours leads to."""
    return next((c.pid for c in psutil.net_connections("tcp") if c.raddr and tuple(c.raddr) == near), None)


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


async def are_in_flight(http: httpx.AsyncClient | Door, count: int) -> bool:
    """Whether so many questions of sessions are on their way in the whole fleet."""
    listed = (await http.get("/v1/sessions?limit=1000")).json()
    return sum(row["in_flight"] for row in listed["data"]) == count


async def retries(door: Door) -> float:
    """Second attempts of the gateway behind this door."""
    return numbers((await door.get("/metrics")).text, "cosmos3_reasoner_retries_total").total()


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


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
