"""A double of an OpenAI-compatible reasoner for the benchmark: replicas with caches that count, and faults on demand.

It looks at no video: its answers are words, its token counts are made up from the length of the URL's name.
"""

import asyncio
import base64
import io
import json
import socket
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import av
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

MODEL = "nvidia/cosmos3-nano-reasoner"
VIDEO_TOKENS = 100


@dataclass
class Faults:
    """`every`: which requests are hit, counted from 1; 0: none."""

    kind: str = ""
    every: int = 0


@dataclass
class BenchServer:
    """`profile` is what it does, whatever it is asked for; `header` is where it takes sessions from.

    `foreign`: it speaks as Dynamo does: no headers of ours, no count of video tokens, a worker's id on demand.
    `buffers`: an answer goes out once it is whole, as behind a proxy that buffers streams.
    `pace_s`: seconds between tokens; `shrinks_after`: questions after which it says that a replica less serves.
    `says`: the words of an answer, by the video's URL and the question; None: as many words as it may give.
    `decodes`: codecs of data URLs that it accepts, by FFmpeg's names; None: it looks at none.
    """

    profile: str = "session-affinity"
    header: str = "x-dynamo-session-id"
    replicas: int = 2
    foreign: bool = False
    decodes: tuple[str, ...] | None = None
    text_tokens: int = 20
    buffers: bool = False
    pace_s: float = 0.001
    shrinks_after: int = 0
    faults: Faults = field(default_factory=Faults)
    says: Callable[[str, str], str] | None = None

    def __post_init__(self) -> None:
        self.held: dict[int, set[str]] = defaultdict(set)
        self.homes: dict[str, int] = {}
        self.turns: dict[str, int] = {}
        self.asked = 0
        self.url = ""

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self.models),
                Route("/ready", self.ready),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
            ]
        )

    async def ready(self, request: Request) -> JSONResponse:
        if self.foreign:
            return JSONResponse({"error": "no such path"}, status_code=404)
        serving = self.replicas - (1 if 0 < self.shrinks_after <= self.asked else 0)
        return JSONResponse(
            {"replicas": {f"r{n}": "ready" if n < serving else "starting" for n in range(self.replicas)}}
        )

    async def models(self, request: Request) -> JSONResponse:
        entry = {"id": MODEL, "owned_by": "bench-double"}
        return JSONResponse({"data": [entry if self.foreign else entry | {"weights": "random"}]})

    async def chat(self, request: Request) -> JSONResponse | StreamingResponse:
        body = await request.json()
        self.asked += 1
        fault = self.faults.kind if self.faults.every and self.asked % self.faults.every == 0 else ""
        if fault == "refuse":
            return JSONResponse({"error": {"message": "no", "code": "no"}}, status_code=500)
        parts = body["messages"][0]["content"]
        urls = [part["video_url"]["url"] for part in parts if isinstance(part, dict) and part["type"] == "video_url"]
        video = urls[0] if urls else ""
        if self.decodes is not None and video.startswith("data:") and codec_of(video) not in self.decodes:
            return JSONResponse({"error": {"message": "cannot decode", "code": "bad_video"}}, status_code=400)
        session = request.headers.get(self.header) if self.profile == "session-affinity" else None
        replica, state = self._home(session, video)
        if fault == "scatter":
            replica = (replica + 1) % self.replicas
        hit = video in self.held[replica] and bool(video)
        self.held[replica].add(video)
        if fault == "forget":
            hit = False
        tokens = body["max_completion_tokens"] - (1 if fault == "short" else 0)
        asked = next((p["text"] for p in parts if isinstance(p, dict) and p["type"] == "text"), "")
        said = ["word"] * tokens if self.says is None or not video else self.says(video, asked).split()
        headers = {
            "x-cosmos3-replica": f"r{replica}",
            "x-cosmos3-session": state,
            "x-cosmos3-media": "hit" if hit else "miss",
        }
        worker = {"nvext": {"worker_id": {"decode_worker_id": 7000 + replica}}} if "nvext" in body else {}
        answer = self._answer(said, hit, fault, VIDEO_TOKENS if video else 0, worker)
        return StreamingResponse(
            _whole(answer) if self.buffers else answer,
            media_type="text/event-stream",
            headers={} if self.foreign else headers,
        )

    def _home(self, session: str | None, video: str) -> tuple[int, str]:
        if session is None:
            # In turn for each video: one turn for all would by chance keep a video where it is, which is refused.
            turn = self.turns.setdefault(video, len(self.turns))
            self.turns[video] += 1
            return turn % self.replicas, "none"
        if session in self.homes:
            return self.homes[session], "hit"
        self.homes[session] = len(self.homes) % self.replicas
        return self.homes[session], "new"

    async def _answer(
        self, said: list[str], hit: bool, fault: str, seen: int, more: dict[str, object]
    ) -> AsyncIterator[bytes]:
        await asyncio.sleep(0 if hit else 0.005)
        for number, word in enumerate(said):
            await asyncio.sleep(self.pace_s if number else 0)
            yield _event({"choices": [{"index": 0, "delta": {"content": f"{word} "}, "finish_reason": None}], **more})
        if fault == "cut":
            return
        if fault == "event":
            yield _event({"error": {"message": "broke"}})
        blind = fault == "blind"
        kinds = {} if self.foreign else {"multimodal_tokens": {"video": 0 if blind else seen}}
        usage = {
            "prompt_tokens": self.text_tokens + (0 if blind and self.foreign else seen),
            "completion_tokens": len(said),
            "prompt_tokens_details": {"cached_tokens": seen if hit else 0, **kinds},
        }
        yield _event({"choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"


async def _whole(answer: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield b"".join([event async for event in answer])


def codec_of(url: str) -> str:
    """FFmpeg's name of the codec of a data URL's video."""
    with av.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as clip:
        return clip.streams.video[0].codec_context.name


def _event(body: dict[str, object]) -> bytes:
    head = {"id": "double", "object": "chat.completion.chunk", "created": 0, "model": MODEL}
    return b"data: " + json.dumps(body if "error" in body else head | body).encode() + b"\n\n"


class Served(Protocol):
    """A double that an ASGI server can run."""

    url: str

    def app(self) -> Starlette: ...


S = TypeVar("S", bound=Served)


@contextmanager
def bench_server(server: S) -> Iterator[S]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)  # who comes before the server does waits for it
        runner = uvicorn.Server(uvicorn.Config(server.app(), log_level="error", lifespan="off"))
        thread = threading.Thread(target=runner.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield server
        finally:
            runner.should_exit = True
            thread.join(timeout=10)
