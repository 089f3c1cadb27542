"""The client: asks, reads each answer to its end, and says of each what it was."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp
from workload import Job, Turns

CHAT = "/v1/chat/completions"
WAIT_S = 0.002


@dataclass
class Answer:
    """
    Args:
        began_s: on the client's clock.
        ttft_s: to the first event of the stream, which the engine sends with its first token (with random weights a
            token may have no text yet); `text_s` to the first text; `total_s` to `[DONE]`.
        itl_s: time between two tokens, mean over the answer.
        cached: prompt tokens from the prefix cache.
        problem: why this is no answer; empty when it is one.
    """

    session: int = -1
    turn: int = -1
    began_s: float = 0.0
    ttft_s: float = 0.0
    text_s: float = 0.0
    total_s: float = 0.0
    itl_s: float = 0.0
    tokens: int = 0
    prompt: int = 0
    cached: int = 0
    replica: str = ""
    media: str = ""
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {k: round(v, 6) if isinstance(v, float) else v for k, v in asdict(self).items()}


class Client:
    """Args: base: of the service; headers: with the token."""

    def __init__(self, base: str, headers: dict[str, str]) -> None:
        self._url, self._headers = base + CHAT, {"Content-Type": "application/json", **headers}
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        self._http = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=120), connector=aiohttp.TCPConnector(limit=64), read_bufsize=2**20
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._http is not None
        await self._http.close()

    async def ask(self, body: bytes, session: str = "") -> Answer:
        """One question; never raises for what the other side does."""
        assert self._http is not None
        headers = {**self._headers, **({"X-Session-ID": session} if session else {})}
        answer = Answer(began_s=time.perf_counter())
        last_token = last_line = 0.0
        ended = False
        try:
            async with self._http.post(self._url, data=body, headers=headers) as said:
                answer.replica = said.headers.get("x-cosmos3-replica", "")
                answer.media = said.headers.get("x-cosmos3-media", "")
                if said.status != 200:
                    answer.problem = f"HTTP {said.status}: {(await said.text())[:300]}"
                    return answer
                async for line in said.content:
                    if not line.startswith(b"data: "):
                        continue
                    last_line = time.perf_counter()
                    if line.startswith(b"data: [DONE]"):
                        ended = True
                        break
                    event = json.loads(line[6:])
                    if "error" in event:
                        answer.problem = f"an error event: {line[:200]!r}"
                    answer.ttft_s = answer.ttft_s or last_line - answer.began_s
                    if event.get("choices"):
                        last_token = last_line
                    if any((choice.get("delta") or {}).get("content") for choice in event.get("choices", ())):
                        answer.text_s = answer.text_s or last_line - answer.began_s
                    if event.get("usage"):
                        usage = event["usage"]
                        answer.tokens, answer.prompt = usage["completion_tokens"], usage["prompt_tokens"]
                        answer.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            answer.problem = f"{type(error).__name__}: {error}"
        answer.total_s = last_line - answer.began_s
        if answer.tokens > 1 and last_token:
            answer.itl_s = (last_token - answer.began_s - answer.ttft_s) / (answer.tokens - 1)
        if not answer.problem and not ended:
            answer.problem = "a stream without [DONE]"
        return answer


Body = Callable[[Job], bytes]


async def in_sessions(client: Client, groups: Sequence[Sequence[Job]], body: Body, at_once: int) -> list[Answer]:
    """`at_once` clients, each with one session after the other."""
    waiting, answers = iter(groups), []

    async def one() -> None:
        for group in waiting:
            for job in group:
                answers.append(await _ask(client, job, body))

    await asyncio.gather(*(one() for _ in range(at_once)))
    return answers


async def in_turn(client: Client, jobs: Sequence[Job], body: Body, at_once: int) -> list[Answer]:
    """`at_once` clients take jobs in order; a session's next question waits for the answer to the one before."""
    turns, answers = Turns(jobs), []

    async def one() -> None:
        while turns.left:
            job = turns.take()
            if job is None:
                await asyncio.sleep(WAIT_S)
                continue
            answers.append(await _ask(client, job, body))
            turns.done(job)

    await asyncio.gather(*(one() for _ in range(at_once)))
    return answers


async def _ask(client: Client, job: Job, body: Body) -> Answer:
    answer = await client.ask(body(job), f"session-{job.session}")
    answer.session, answer.turn = job.session, job.turn
    return answer
