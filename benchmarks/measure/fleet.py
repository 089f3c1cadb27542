"""A real fleet under questions: the service, two vLLM replicas on the CPU, and vLLM's own counts of what they did."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import mean, median
from typing import Any

import httpx
import psutil
from measure import videos
from measure.result import Section, demand, quantile

from cosmos3_serve.reasoner.engine.secret import SECRET_ENV
from cosmos3_serve.reasoner.local import LocalReasoner
from cosmos3_serve.reasoner.setup import MODEL_NAME, SECRET_HEADER

CHAT = "/v1/chat/completions"
REPLICAS = 2
TOKENS = 4
ROUND_ROBIN, AFFINITY = "round-robin", "session-affinity"
NOTE = (
    "{videos} videos (640x360, 30 fps, {clip_s:g} s, H.264), {questions} questions each, {at_once} conversations at a "
    "time, {tokens} tokens an answer; fresh videos for each repeat. A conversation is known by its video alone, no "
    "header is sent. TTFT: from sending the question to its first token, the video goes along as a data URL each time. "
    "Encodings: misses of vLLM's own multimodal cache, both replicas together. Mean (least to most) of {repeats} "
    "repeat(s) of each, in the order {order}, so that a slower machine slows both; repeats of one profile that "
    "follow each other share a service. Ratio: affinity over round robin within a pair of neighbours, mean (least to "
    "most) again."
)


@dataclass
class Answer:
    """One streamed answer, whole."""

    ttft_s: float
    replica: str
    media: str
    usage: dict[str, Any]


class Fleet(LocalReasoner):
    """The service, and a look behind its gateway."""

    @property
    def secret(self) -> str:
        """What replicas ask for, as an engine has it."""
        return psutil.Process(self.replicas[0]["engine"]["engine_pid"]).environ()[SECRET_ENV]

    def counted(self) -> dict[str, Counter[str]]:
        """Replica -> metric without labels -> value."""
        found: dict[str, Counter[str]] = {}
        for replica in self.replicas:
            said = httpx.get(f"{replica['url']}/metrics", headers={SECRET_HEADER: self.secret}, trust_env=False)
            demand(said.status_code == 200, f"a replica's metrics answer {said.status_code}")
            rows = found[replica["id"]] = Counter[str]()
            for line in said.text.splitlines():
                if line.startswith("vllm:"):
                    name, _, value = line.rpartition(" ")
                    rows[name.partition("{")[0]] += float(value)  # type: ignore[assignment]
        return found


def fleet(base: Path, routing: str) -> Fleet:
    base.mkdir(parents=True, exist_ok=True)
    environ = {"COSMOS3_REASONER_WORKERS": str(REPLICAS), "COSMOS3_REASONER_ROUTING": routing}
    return Fleet(environ, base)


async def ask(http: httpx.AsyncClient, url: str, body: dict[str, Any] | bytes) -> Answer:
    """Ask and read to the end. Raises InvalidRun unless the answer is whole."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    began = time.perf_counter()
    ttft = 0.0
    usage: dict[str, Any] = {}
    last = ""
    headers = {"content-type": "application/json"}
    async with http.stream("POST", url, content=content, headers=headers) as said:
        if said.status_code != 200:
            demand(False, f"HTTP {said.status_code}: {(await said.aread())[:200]!r}")
        async for line in said.aiter_lines():
            if not line:
                continue
            last = line
            event = json.loads(line.removeprefix("data: ")) if line != "data: [DONE]" else {}
            demand("error" not in event, f"an error event: {line[:200]}")
            if not ttft and any(choice["delta"].get("content") for choice in event.get("choices", ())):
                ttft = time.perf_counter() - began
            usage = event.get("usage") or usage
    demand(last == "data: [DONE]", "a stream without [DONE]")
    demand(ttft > 0 and usage.get("completion_tokens") == TOKENS, f"not the tokens asked for: {usage}")
    video = (usage.get("prompt_tokens_details") or {}).get("multimodal_tokens", {}).get("video")
    demand(bool(video), f"no video tokens in the usage: {usage}")
    names = ("x-cosmos3-replica", "x-cosmos3-media")
    return Answer(ttft, *(said.headers.get(name, "") for name in names), usage)


def question(part: dict[str, Any], words: str) -> dict[str, Any]:
    return {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": [part, {"type": "text", "text": words}]}],
        "max_tokens": TOKENS,
        "min_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def data_part(clip: bytes) -> dict[str, Any]:
    url = "data:video/mp4;base64," + base64.b64encode(clip).decode()
    return {"type": "video_url", "video_url": {"url": url}}


def client(service: LocalReasoner | None = None, **headers: str) -> httpx.AsyncClient:
    every = {**(service.headers if service else {}), **headers}
    return httpx.AsyncClient(headers=every, timeout=600, trust_env=False)


async def conversations(service: Fleet, clips: list[bytes], questions: int, at_once: int) -> list[list[Answer]]:
    """Each clip's questions in turn, `at_once` clips at a time."""
    places = asyncio.Semaphore(at_once)
    url = service.url + CHAT

    async def one(http: httpx.AsyncClient, clip: bytes) -> list[Answer]:
        part = data_part(clip)
        async with places:
            return [await ask(http, url, question(part, f"What happens, take {n}?")) for n in range(questions)]

    async with client(service) as http:
        return list(await asyncio.gather(*(one(http, clip) for clip in clips)))


def measured(service: Fleet, clips: list[bytes], questions: int, at_once: int) -> dict[str, Any]:
    """One profile's figures. Two videos more are asked about first, so that nothing is started while time is taken."""
    asyncio.run(conversations(service, clips[-REPLICAS:], 1, REPLICAS))
    clips = clips[:-REPLICAS]
    before = service.counted()
    began = time.monotonic()
    answers = asyncio.run(conversations(service, clips, questions, at_once))
    wall = time.monotonic() - began
    after = service.counted()
    grown = {id: after[id] - before[id] for id in after}
    done = {id: rows["vllm:request_success_total"] for id, rows in grown.items()}
    count = len(clips) * questions
    demand(sum(map(len, answers)) == count, "a conversation is not complete")
    demand(sum(done.values()) == count, f"{count} answers, but the replicas counted {done}")
    demand(len(done) == REPLICAS and all(done.values()), f"a replica was not reached: {done}")
    first = [turns[0].ttft_s for turns in answers]
    later = [turn.ttft_s for turns in answers for turn in turns[1:]]
    encodings = sum(
        after[id]["vllm:mm_cache_queries_total"] - after[id]["vllm:mm_cache_hits_total"]
        - before[id]["vllm:mm_cache_queries_total"] + before[id]["vllm:mm_cache_hits_total"]
        for id in after
    )  # fmt: skip
    demand(encodings >= len(clips), f"{encodings:g} encodings of {len(clips)} videos")
    cached = sum(t.usage["prompt_tokens_details"].get("cached_tokens") or 0 for turns in answers for t in turns)
    return {
        "questions": count,
        "videos": len(clips),
        "req_s": count / wall,
        "seconds": wall,
        "ttft_mean_s": mean([*first, *later]),
        "ttft_by_turn_s": [median([turns[n].ttft_s for turns in answers]) for n in range(questions)],
        "ttft_first_s": mean(first),
        "ttft_later_s": mean(later),
        "ttft_p95_s": quantile([*first, *later], 0.95),
        "encodings": int(encodings),
        "cached_share": cached / sum(t.usage["prompt_tokens"] for turns in answers for t in turns),
        "by_replica": {id: int(n) for id, n in sorted(done.items())},
    }


def profile_section(runs: Sequence[tuple[str, dict[str, Any]]], clip_s: float, at_once: int) -> Section:
    """
    Args:
        runs: profile and figures (see `measured`) of each repeat, in the order in which they ran.
    """
    found = {profile: [said for of, said in runs if of == profile] for profile in (ROUND_ROBIN, AFFINITY)}
    rr, af = found.values()
    demand(len(rr) == len(af) > 0, f"{len(rr)} repeats of round robin and {len(af)} of affinity")
    rows: list[list[Any]] = [["", ROUND_ROBIN, AFFINITY, "ratio"]]

    def row(name: str, read: Callable[[dict[str, Any]], float], shown: str = "{:.2f}") -> None:
        a, b = [read(said) for said in rr], [read(said) for said in af]
        rows.append([name, spread(a, shown), spread(b, shown), spread([y / x for x, y in zip(a, b, strict=True)])])

    for key, name in (
        ("req_s", "questions per second"),
        ("ttft_mean_s", "TTFT, mean, s"),
        ("ttft_first_s", "TTFT, first turn, mean, s"),
        ("ttft_later_s", "TTFT, later turns, mean, s"),
        ("ttft_p95_s", "TTFT, 95 %, s"),
    ):
        row(name, itemgetter(key))
    for n in range(len(rr[0]["ttft_by_turn_s"])):
        row(f"TTFT, turn {n + 1}, median, s", lambda said, n=n: said["ttft_by_turn_s"][n])  # type: ignore[misc]
    row(f"encodings of {rr[0]['videos']} videos", itemgetter("encodings"), "{:g}")
    row("prompt tokens from the prefix cache", itemgetter("cached_share"), "{:.0%}")
    shown = ["; ".join("/".join(map(str, said["by_replica"].values())) for said in found[p]) for p in found]
    rows.append(["questions by replica", *shown, ""])
    note = NOTE.format(
        videos=rr[0]["videos"], questions=rr[0]["questions"] // rr[0]["videos"], clip_s=clip_s, at_once=at_once,
        tokens=TOKENS, repeats=len(rr), order=", ".join(profile for profile, _ in runs),
    )  # fmt: skip
    return Section("Round robin and session affinity", note, rows, {**found, "order": [p for p, _ in runs]})


def spread(values: Sequence[float], shown: str = "{:.2f}") -> str:
    """Mean (least to most); one alone where all are shown alike."""
    middle, least, most = (shown.format(value) for value in (mean(values), min(values), max(values)))
    return middle if least == most else f"{middle} ({least}–{most})"


def clips(count: int, seconds: float, seed: int, *, width: int = 640, height: int = 360) -> list[bytes]:
    return [videos.moving_video(seconds, seed * 1000 + n, width=width, height=height) for n in range(count)]
