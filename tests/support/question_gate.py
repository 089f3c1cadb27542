"""The fixed set of questions about drawn clips that quality gates of the reasoner ask, and the ways to ask them."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from support.gateway import CHAT, about
from support.real_fleet import RealFleet
from support.scenes import write_scene

from cosmos3_serve.blockworld import words
from cosmos3_serve.blockworld.scene import sample_scene
from cosmos3_serve.blockworld.words import agrees

CLIPS = 24
SAID = {"max_completion_tokens": 40, "temperature": 0}
ONE_REPLICA = {
    "COSMOS3_REASONER_MODEL": "blockworld",
    "COSMOS3_REASONER_WORKERS": "1",
    "COSMOS3_REASONER_GATEWAYS": "1",
    "COSMOS3_VLLM_ARGS": "",
}


@dataclass(frozen=True)
class Asked:
    """One question, its right answer, and the file of the clip that it is about."""

    clip: Path
    question: str
    answer: str


@dataclass(frozen=True)
class Told:
    """What became of the questions of one way: right or not, and the responses, by the questions' names."""

    verdicts: dict[str, bool]
    answers: dict[str, httpx.Response]

    def cached_tokens(self) -> list[int]:
        """Prompt tokens of each answer that came from the prefix cache."""
        usages = [answer.json()["usage"] for answer in self.answers.values()]
        return [(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0 for usage in usages]

    def media(self) -> set[str]:
        """What the gateway said of its replica: `hit` or `miss`."""
        return {answer.headers["x-cosmos3-media"] for answer in self.answers.values()}


def questions(folder: Path, clips: int = CLIPS) -> dict[str, Asked]:
    """Two questions about each of so many clips of held-out scenes: what happens, and one of another kind in turn."""
    rng = random.Random(11)
    asked: dict[str, Asked] = {}
    number = 0
    while number < clips:
        scene = sample_scene(rng, moving=True, held_out=True)
        if not scene.events:
            continue
        file = folder / f"{number}.mp4"
        write_scene(file, scene)
        turns = {turn.kind: turn for turn in words.questions(scene, rng, video=True)}
        for turn in (turns.pop("happens"), next(iter(turns.values()))):
            asked[f"{number}-{turn.kind}"] = Asked(file, turn.question, turn.answer)
        number += 1
    return asked


def data_url(file: Path, copy: int = 0) -> str:
    """The clip; each `copy` is another content for caches, and the same pictures."""
    box = b"\0\0\0\x0cfree" + copy.to_bytes(4, "big")
    return "data:video/mp4;base64," + base64.b64encode(file.read_bytes() + box).decode()


def by_id(asked: Asked, uuid: str, *, copy: int | None = None, **fields: Any) -> dict[str, Any]:
    """A question as the gateway sends it to a replica: the clip by an id, and with its bytes where `copy` is given."""
    body = about("", asked.question, **SAID, **fields)
    video = None if copy is None else {"url": data_url(asked.clip, copy)}
    body["messages"][0]["content"][0] |= {"video_url": video, "uuid": uuid}
    return body


async def tell(
    http: httpx.AsyncClient,
    url: str,
    bodies: Mapping[str, dict[str, Any]],
    asked: Mapping[str, Asked],
    width: int,
    heads: Mapping[str, dict[str, str]] | None = None,
) -> Told:
    """All answers, at most `width` questions at once; judged by the answer that `asked` has."""
    gate, heads = asyncio.Semaphore(width), heads or {}

    async def one(name: str) -> httpx.Response:
        async with gate:
            answer = await http.post(url, json=bodies[name], headers=heads.get(name))
        assert answer.status_code == 200, answer.text
        return answer

    answers = dict(zip(bodies, await asyncio.gather(*map(one, bodies)), strict=True))
    said = {name: str(answer.json()["choices"][0]["message"]["content"]) for name, answer in answers.items()}
    return Told({name: agrees(text, asked[name].answer) for name, text in said.items()}, answers)


async def plainly(fleet: RealFleet, asked: Mapping[str, Asked], *, width: int = 4) -> Told:
    """To the replica itself, the clip's bytes with each question; nothing of one question is used for another."""
    bodies = {
        name: about(data_url(it.clip, 1000 + n), it.question, cache_salt=f"plain-{n}", **SAID)
        for n, (name, it) in enumerate(asked.items())
    }
    async with fleet.inside() as http:
        told = await tell(http, fleet.replicas[0]["url"] + CHAT, bodies, asked, width)
    assert set(told.cached_tokens()) == {0}
    return told


async def through_gateway(
    fleet: RealFleet, asked: Mapping[str, Asked], *, copy: int, width: int = 1, urls: Mapping[Path, str] | None = None
) -> Told:
    """As users ask: a session for each clip.

    Args:
        copy: contents that no other `copy` has used.
        urls: what the clips are called, where not by their bytes.
    """
    named = urls or {it.clip: data_url(it.clip, copy) for it in asked.values()}
    bodies = {name: about(named[it.clip], it.question, **SAID) for name, it in asked.items()}
    heads = {name: {"X-Session-ID": f"{copy}-{it.clip.stem}"} for name, it in asked.items()}
    async with fleet.client() as http:
        return await tell(http, CHAT, bodies, asked, width, heads)
