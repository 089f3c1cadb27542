"""A warm question on a 720p clip: time to its first token with the media store and without, and where it goes."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from statistics import median
from typing import Any

import httpx
from measure.fleet import CHAT, Answer, Fleet, ask, client, data_part, question
from measure.result import Section, demand
from measure.videos import moving_video

from cosmos3_serve.reasoner.gateway.held_media import media_uuid
from cosmos3_serve.reasoner.setup import SECRET_HEADER

SECONDS = 10.0
STORE_DATA = "store on, data URL through the gateway"
STORE_FILE = "store on, file-id through the gateway"
NAMED = "by name, straight to the replica"
OFF = "store off: bytes, straight to the replica"
WAYS = (STORE_DATA, STORE_FILE, NAMED, OFF)
GATEWAY_WAYS = (STORE_DATA, STORE_FILE)
# A prefill that takes three times as long as another of its kind has run the vision tower again. Milliseconds may do
# what they like.
SAME_WORK, SPREAD_S = 3.0, 0.1
NOTE = (
    "One 1280x720 clip, 30 fps, {seconds:g} s, H.264, {mb:.1f} MB; the replica has answered about it before, and each "
    "question is a new one. Median (least to most) of {rounds} questions each, asked in turns, nothing else running on "
    "the fleet. Store off is what a front door without a media store does: the replica gets and decodes the bytes with "
    "every question, and no gateway's time is counted. The clip's name stands beside them, which spares the hashing of "
    "its frames; without it the engine takes the clip for another one, and the two share caches. Queue and prefill: "
    "vLLM's own histograms. Gateway: what a question costs more than by name (signed: below the spread it means "
    "nothing). The rest is the replica's: reading the request, decoding bytes, preparing the prompt."
)
QUEUE, PREFILL = "vllm:request_queue_time_seconds_sum", "vllm:request_prefill_time_seconds_sum"


async def warm_questions(service: Fleet, rounds: int) -> dict[str, Any]:
    clip = moving_video(SECONDS, 77, width=1280, height=720)
    uuid = media_uuid("video", hashlib.sha256(clip).hexdigest(), {})
    ours, theirs = service.url + CHAT, ""
    async with client(service) as http, client(**{SECRET_HEADER: service.secret}) as straight:
        file = await upload(http, service.url, clip)
        first = await ask(http, ours, question(data_part(clip), "What happens first?"))
        theirs = next(r["url"] for r in service.replicas if r["id"] == first.replica) + CHAT
        parts = {
            STORE_DATA: data_part(clip),
            STORE_FILE: {"type": "video_url", "video_url": {"url": f"file-id:{file}"}},
            NAMED: {"type": "video_url", "video_url": None, "uuid": uuid},
            OFF: {**data_part(clip), "uuid": uuid},
        }
        found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for number in range(-1, rounds):  # the first round warms up
            for way in WAYS if number % 2 else WAYS[::-1]:
                door, url = (http, ours) if way in GATEWAY_WAYS else (straight, theirs)
                before = replica_of(service, first.replica)
                answer = await ask(door, url, question(parts[way], f"What happens now, {way}, {number}?"))
                after = replica_of(service, first.replica)
                if number >= 0:
                    check(way, answer, first)
                    row = {"ttft": answer.ttft_s, "queue": after[QUEUE] - before[QUEUE]}
                    found[way].append({**row, "prefill": after[PREFILL] - before[PREFILL]})
    for way, rows in found.items():
        steady(way, [row["prefill"] for row in rows])
    return {"rows": found, "first_s": first.ttft_s, "mb": len(clip) / 1e6, "tokens": first.usage["prompt_tokens"]}


async def upload(http: httpx.AsyncClient, url: str, clip: bytes) -> str:
    said = await http.post(f"{url}/v1/files", files={"file": ("clip.mp4", clip)}, data={"purpose": "vision"})
    demand(said.status_code == 200, f"the upload answers {said.status_code}: {said.text[:200]}")
    return str(said.json()["id"])


def replica_of(service: Fleet, name: str) -> Counter[str]:
    rows = service.counted()[name]
    demand(QUEUE in rows and PREFILL in rows, "the engine does not say its queue and prefill times")
    return rows


def check(way: str, answer: Answer, first: Answer) -> None:
    """Raises InvalidRun unless the question was a warm one."""
    if way in GATEWAY_WAYS:
        demand(answer.media == "hit", f"{way}: the replica did not hold the clip")
        demand(answer.replica == first.replica, f"{way}: another replica answered")
    cached = answer.usage["prompt_tokens_details"].get("cached_tokens") or 0
    share = cached / answer.usage["prompt_tokens"]
    demand(share > 0.8, f"{way}: only {share:.0%} of the prompt came from the prefix cache")


def steady(way: str, prefills: list[float]) -> None:
    """Raises InvalidRun if questions of one kind made the engine do different work."""
    least, most = min(prefills), max(prefills)
    demand(
        most <= SAME_WORK * least or most - least <= SPREAD_S,
        f"{way}: prefills of {1000 * least:.0f} to {1000 * most:.0f} ms: some encoded the video again, some did not",
    )


def warm_section(service: Fleet, rounds: int) -> Section:
    return section_of(asyncio.run(warm_questions(service, rounds)), rounds)


def section_of(said: dict[str, Any], rounds: int) -> Section:
    found: dict[str, list[dict[str, float]]] = said["rows"]
    middle = {way: median(row["ttft"] for row in rows) for way, rows in found.items()}
    rows: list[list[Any]] = [
        ["question", "first token, ms", "of it queue", "prefill", "other in the replica", "gateway"]
    ]
    for way, cells in found.items():
        total = sorted(1000 * cell["ttft"] for cell in cells)
        queue, prefill = (1000 * median(cell[name] for cell in cells) for name in ("queue", "prefill"))
        gateway = 1000 * (middle[way] - middle[NAMED]) if way in GATEWAY_WAYS else 0.0
        other = 1000 * middle[way] - queue - prefill - gateway
        rows.append(
            [way, f"{1000 * middle[way]:.0f} ({total[0]:.0f}–{total[-1]:.0f})", f"{queue:.1f}", f"{prefill:.0f}",
             f"{other:.0f}", f"{gateway:+.0f}" if way in GATEWAY_WAYS else "–"]
        )  # fmt: skip
    rows.append(
        ["the very first question (cold, through the gateway)", f"{1000 * said['first_s']:.0f}", "", "", "", ""]
    )
    ratio = middle[OFF] / middle[STORE_DATA]
    rows.append(["**store off over store on (data URL)**", f"**{ratio:.1f} times**", "", "", "", ""])
    note = NOTE.format(seconds=SECONDS, mb=said["mb"], rounds=rounds) + f" Prompt: {said['tokens']} tokens."
    return Section("A warm question, 720p", note, rows, said)
