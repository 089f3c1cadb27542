"""The load: sessions of questions, a fixed number of them at once, every answer streamed and timed."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import httpx

from cosmos3_serve.bench import scene_clips
from cosmos3_serve.bench.loop_delay import LoopDelay
from cosmos3_serve.bench.proxy import recording_proxy
from cosmos3_serve.bench.records import Request, Workload
from cosmos3_serve.bench.seen import video_tokens
from cosmos3_serve.blockworld.words import agrees
from cosmos3_serve.client.events import split_lines
from cosmos3_serve.errors import ContractViolation
from cosmos3_serve.proxies import direct

MAX_LINE = 4 * 1024 * 1024
CONNECT_S = 10.0
# A pause in the text that ends a burst: longer than it takes to read an event that is there, shorter than any engine's
# time between tokens.
PAUSE_S = 0.0005


class Load:
    """Our own load generator.

    Args:
        base_url: of an OpenAI-compatible server, without `/v1`.
        token: "" where the server asks for none.
        part: the URL of each video by name, as its content part carries it.
        text_tokens: of a prompt without a video; where a server does not count the video's, they are what is above.
        worker_ids: ask Dynamo which worker answered.
        scenes: the videos are block-world scenes: their own questions are asked, an answer ends where it ends, and is
            compared with the right one.
        timeout_s: without a byte of an answer.
    """

    name = "cosmos3 bench (own load generator)"
    summary = ""

    def __init__(
        self,
        workload: Workload,
        *,
        base_url: str,
        token: str,
        model: str,
        part: Mapping[str, str],
        text_tokens: int = 0,
        worker_ids: bool = False,
        scenes: bool = False,
        timeout_s: float = 600.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._work, self._model, self._part = workload, model, part
        self._base, self._timeout_s, self._clock = base_url, timeout_s, clock
        self._auth = {"authorization": f"Bearer {token}"} if token else {}
        self._text_tokens, self._worker_ids = text_tokens, worker_ids
        self._scenes = scenes
        self._arrives: bool | None = None
        self.proof: str | None = None
        self._loop = LoopDelay(clock)

    async def prove(self) -> None:
        """One question without a video through a recording proxy: whether a session's header goes out as it should."""
        name = f"bench-{secrets.token_hex(8)}"
        with recording_proxy(self._base) as (url, recorded):
            async with self._client(url, 1) as http:
                self.proof = (await self._ask(http, "", 0, name, 1, 0)).session_state
        if self._work.profile == "session-affinity":
            self._arrives = any(seen.get(self._work.session_header.lower()) == name for seen in recorded.requests)

    async def level(
        self, videos: Sequence[str], *, concurrency: int, repeat: int, done: Callable[[], None] = lambda: None
    ) -> list[Request]:
        """Ask every question of every video; `concurrency` sessions at once, each one question after another.

        A failed question is a record with `error`, and its session goes on: the run is invalid either way, and how much
        of it failed is worth knowing. Cancelling ends every stream.
        """
        waiting = iter(videos)
        records: list[Request] = []

        async def session(http: httpx.AsyncClient) -> None:
            for video in waiting:
                name = f"bench-{secrets.token_hex(8)}"
                for turn in range(self._work.questions):
                    records.append(await self._ask(http, video, turn, name, concurrency, repeat))
                    done()

        async with self._client(self._base, concurrency) as http, self._loop, asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(videos))):
                group.create_task(session(http))
        return records

    def _client(self, base: str, connections: int) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        timeout = httpx.Timeout(self._timeout_s, connect=CONNECT_S)
        return httpx.AsyncClient(base_url=base, limits=limits, timeout=timeout, headers=self._auth, mounts=direct(base))

    async def _ask(
        self, http: httpx.AsyncClient, video: str, turn: int, name: str, concurrency: int, repeat: int
    ) -> Request:
        affinity = self._work.profile == "session-affinity"
        sent = {self._work.session_header: name} if affinity else {}
        right = scene_clips.turns(video)[turn] if self._scenes and video else None
        words = text_of(turn) if right is None else right.question
        asked = question(self._model, self._part[video] if video else "", words, self._work.output_tokens)
        asked["ignore_eos"] = right is None
        if self._worker_ids:
            asked["nvext"] = {"extra_fields": ["worker_id"]}
        body = json.dumps(asked).encode()
        facts: dict[str, Any] = {}
        started = self._clock()
        try:
            await self._stream(http, body, sent, facts)
        except (httpx.HTTPError, ContractViolation, ValueError) as error:
            facts["error"] = f"{type(error).__name__}: {str(error)[:200]}"
        ended = self._clock()
        text = facts.pop("text", "")
        if right is not None and "error" not in facts:
            facts["right"] = agrees(text, right.answer)
        return Request(
            repeat=repeat,
            concurrency=concurrency,
            video=video,
            turn=turn,
            session=name if affinity else None,
            headers=tuple(header.lower() for header in sent),
            header_seen=self._arrives if affinity else None,
            started=started,
            ended=ended,
            client_late_s=self._loop.longest(started, ended),
            **facts,
        )

    async def _stream(
        self, http: httpx.AsyncClient, body: bytes, sent: Mapping[str, str], facts: dict[str, Any]
    ) -> None:
        headers = {"content-type": "application/json", **sent}
        async with http.stream("POST", "/v1/chat/completions", content=body, headers=headers) as response:
            facts["status"] = response.status_code
            facts["replica"] = response.headers.get("x-cosmos3-replica")
            facts["session_state"] = response.headers.get("x-cosmos3-session")
            facts["media_state"] = response.headers.get("x-cosmos3-media")
            if response.status_code != 200:
                text = (await response.aread())[:2000].decode("utf-8", "replace")
                raise ValueError(f"status {response.status_code}: {' '.join(text.split())[:160]}")
            async for event in _events(response):
                _take(event, facts, self._clock, self._text_tokens)
        if facts.get("first") is None:
            raise ValueError("the answer holds no text")


def text_of(turn: int) -> str:
    """The words of a question. Every turn has others, so that only the video can be cached between them."""
    return f"Question {turn}: what happens in this clip, and where is shape number {turn + 1}?"


def question(model: str, video_url: str, words: str, tokens: int) -> dict[str, Any]:
    """The body of one question; without a URL it is about nothing."""
    video = [{"type": "video_url", "video_url": {"url": video_url}}] if video_url else []
    return {
        "model": model,
        "messages": [{"role": "user", "content": [*video, {"type": "text", "text": words}]}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": tokens,
        "temperature": 0,
    }


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in split_lines(response.aiter_bytes(), MAX_LINE):
        if not line.startswith(b"data:"):
            continue
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if not isinstance(event, dict):
            raise ValueError("an event is not an object")
        if "error" in event:
            raise ValueError(f"the stream ended with an error: {str(event['error'])[:160]}")
        yield event
    raise ValueError("the stream ended without [DONE]")


def _take(event: Mapping[str, Any], facts: dict[str, Any], clock: Callable[[], float], text_tokens: int) -> None:
    worker = ((event.get("nvext") or {}).get("worker_id") or {}).get("decode_worker_id")
    if worker is not None:
        facts["replica"] = str(worker)
    for choice in event.get("choices") or []:
        delta = choice.get("delta") or {}
        if delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"):
            now = clock()
            facts.setdefault("first", now)
            facts["text"] = facts.get("text", "") + str(delta.get("content") or "")
            facts["pieces"] = facts.get("pieces", 0) + 1
            if "last" not in facts or now - facts["last"] > PAUSE_S:
                facts["bursts"] = facts.get("bursts", 0) + 1
            facts["last"] = now
        facts["finish_reason"] = choice.get("finish_reason") or facts.get("finish_reason")
    usage = event.get("usage")
    if isinstance(usage, dict):
        details = usage.get("prompt_tokens_details") or {}
        facts["prompt_tokens"] = usage.get("prompt_tokens")
        facts["output_tokens"] = usage.get("completion_tokens")
        facts["cached_tokens"] = details.get("cached_tokens")
        facts["video_tokens"] = video_tokens(usage, text_tokens)
