"""Questions through two real gateways to two real vLLM servers on real Ray, counted in vLLM's own metrics.

The weights are random, and the text of all answers is the same; what tells answers apart are their logprobs.
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from support import clips
from support.fleet import skip_without_engine
from support.gateway import CHAT, about, events, text, world
from support.service import shared_cache

from cosmos3_serve.client import reasoner_smoke
from cosmos3_serve.client.reasoner import Reasoner
from cosmos3_serve.reasoner.local import LocalReasoner
from cosmos3_serve.reasoner.member import HeldMedia, Service
from cosmos3_serve.reasoner.replica_secret import SECRET_ENV
from cosmos3_serve.reasoner.setup import MODEL_NAME, SECRET_HEADER

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TOKENS = {"one": "token-of-tenant-one", "two": "token-of-tenant-two"}
LONG = "word " * 6_500  # some seconds of prefill


class Fleet(LocalReasoner):
    """The service, and a look behind its gateways."""

    @property
    def secret(self) -> str:
        environ = psutil.Process(self.replicas[0]["engine"]["engine_pid"]).environ()
        return environ[SECRET_ENV]

    def client(self, tenant: str = "one") -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {TOKENS[tenant]}"}
        limits = httpx.Limits(max_connections=100)
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=600, limits=limits)

    async def figures(self) -> dict[str, dict[str, float]]:
        """Replica -> metric without labels -> value, of those that answer."""
        found = {}
        async with httpx.AsyncClient(headers={SECRET_HEADER: self.secret}, timeout=60) as http:
            for replica in self.replicas:
                text = (await http.get(f"{replica['url']}/metrics")).text
                rows = Counter[str]()
                for line in text.splitlines():
                    if line.startswith("vllm:"):
                        rows[line.partition("{")[0]] += float(line.rpartition(" ")[2])  # type: ignore[assignment]
                found[replica["id"]] = dict(rows)
        return found


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    skip_without_engine()
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text("".join(f"{name}:{token}\n" for name, token in TOKENS.items()))
    env = {"COSMOS3_REASONER_WORKERS": "2", "COSMOS3_REASONER_GATEWAYS": "2",
           "COSMOS3_REASONER_TOKEN_FILE": str(tokens), "COSMOS3_REASONER_QUEUE_TIMEOUT_S": "600"}  # fmt: skip
    with Fleet(env, shared_cache(tmp_path_factory)) as running:
        yield running


def video(number: int, frames: int = 12, size: tuple[int, int] = (128, 96)) -> str:
    data = clips.clip(frames=frames, fps=4, size=size, options=(("crf", str(20 + number % 25)),), times_ms=None)
    # A free box behind the content makes as many contents as are asked for out of one clip.
    mark = number.to_bytes(4, "big")
    return "data:video/mp4;base64," + base64.b64encode(data + b"\0\0\0\x0cfree" + mark).decode()


def picture_of(answer: httpx.Response) -> tuple[float, ...]:
    """What tells answers apart: the logprobs of the first token."""
    (first, *_) = answer.json()["choices"][0]["logprobs"]["content"]
    return tuple(round(top["logprob"], 3) for top in first["top_logprobs"])


ASKED = {"max_completion_tokens": 1, "temperature": 0}
TOLD = {**ASKED, "logprobs": True, "top_logprobs": 5}


async def in_turn(fleet: Fleet, bodies: Sequence[dict[str, Any]], headers: Sequence[dict[str, str]], width: int = 4
                  ) -> list[httpx.Response]:  # fmt: skip
    """At most `width` at once: no replica is ever full."""
    gate = asyncio.Semaphore(width)
    async with fleet.client() as http:

        async def one(body: dict[str, Any], head: dict[str, str]) -> httpx.Response:
            async with gate:
                answer = await http.post(CHAT, json=body, headers=head)
            assert answer.status_code == 200, answer.text
            return answer

        return await asyncio.gather(*map(one, bodies, headers))


async def misses(fleet: Fleet) -> float:
    """Items that a replica had to process, over all replicas."""
    rows = (await fleet.figures()).values()
    return sum(row["vllm:mm_cache_queries_total"] - row["vllm:mm_cache_hits_total"] for row in rows)


async def until_idle(busy: Callable[[], Awaitable[float]], within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while True:
            if not await busy():
                return
            await asyncio.sleep(0.1)


# ---- the surface ----------------------------------------------------------------------------------------------------


async def test_the_openai_client_asks_about_a_video(fleet: Fleet) -> None:
    client = openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key=TOKENS["one"])
    messages: Any = about(video(900))["messages"]
    whole = await client.chat.completions.create(
        model=MODEL_NAME, messages=messages, max_completion_tokens=8, temperature=0
    )
    assert whole.choices[0].message.content
    assert whole.usage is not None
    pieces = []
    stream = await client.chat.completions.create(
        model=MODEL_NAME, messages=messages, max_completion_tokens=8, temperature=0, stream=True, seed=1, stop=["\0"],
        stream_options={"include_usage": True}, extra_body={"cosmos3": {"explain": True}},
    )  # fmt: skip
    async for chunk in stream:
        pieces += [choice.delta.content or "" for choice in chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    (model,) = [m async for m in client.models.list()]
    assert model.id == MODEL_NAME
    assert model.model_extra is not None
    assert model.model_extra["weights"] == "random"
    assert model.model_extra["max_model_len"] >= 16384
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model=MODEL_NAME, messages=messages, max_completion_tokens=10**7)
    assert "max_tokens" in str(refused.value) or "context length" in str(refused.value)


async def test_ready_tells_its_checks_and_the_port_shows_no_replica(fleet: Fleet) -> None:
    async with fleet.client() as http:
        report = (await http.get("/ready")).json()
        assert report["status"] == "ready"
        assert {c["name"] for c in report["checks"]} >= {"registry", "replicas", "canary", "serve"}
        for path in ("/-/healthz", "/-/routes", "/load", "/version", "/tokenize", "/v1/completions", "/docs"):
            assert (await http.get(path)).status_code == 404
    async with httpx.AsyncClient(base_url=fleet.url) as stranger:
        for path in ("/health", "/-/healthz", "/-/routes", "/metrics", "/v1/models", "/"):
            assert (await stranger.get(path)).status_code == 401


async def test_smoke_passes(fleet: Fleet) -> None:
    async with Reasoner(fleet.url, environ={"COSMOS3_REASONER_TOKEN": TOKENS["one"]}) as reasoner:
        found = await reasoner_smoke.smoke(reasoner)
        assert found["video_tokens"] > 5000
        assert found["description"]


async def test_explained_frames_cost_what_the_engine_counts(fleet: Fleet) -> None:
    (answer,) = await in_turn(fleet, [about(video(901, frames=40), cosmos3={"explain": True}, **ASKED)], [{}])
    (media,) = answer.json()["cosmos3"]["media"]
    counted = answer.json()["usage"]["prompt_tokens_details"]["multimodal_tokens"]["video"]
    # The engine counts the timestamps' words with the video: some tokens for each pair of frames.
    own, pairs = media["sampling"]["tokens"], len(media["sampling"]["timestamps_s"])
    assert own + 4 * pairs <= counted <= own + 12 * pairs


# ---- who encodes ----------------------------------------------------------------------------------------------------


async def test_affinity_encodes_each_of_twelve_videos_once(fleet: Fleet) -> None:
    before = await misses(fleet)
    told = []
    for turn in range(8):
        bodies = [about(video(n), f"question {turn}", **ASKED) for n in range(12)]
        told.append(await in_turn(fleet, bodies, [{"X-Session-ID": f"affinity-{n}"} for n in range(12)]))
    assert await misses(fleet) - before == 12
    homes = [{turn[n].headers["x-cosmos3-replica"] for turn in told} for n in range(12)]
    assert all(len(found) == 1 for found in homes)
    assert Counter(next(iter(found)) for found in homes) == {"replica-0": 6, "replica-1": 6}
    assert [a.headers["x-cosmos3-session"] for a in told[0]] == ["new"] * 12
    assert {a.headers["x-cosmos3-session"] for turn in told[1:] for a in turn} == {"hit"}


async def test_keys_from_content_give_the_same_spread(fleet: Fleet) -> None:
    before = await misses(fleet)
    told = []
    for turn in range(3):
        bodies = [about(video(100 + n), f"question {turn}", **ASKED) for n in range(12)]
        told.append(await in_turn(fleet, bodies, [{}] * 12))
    assert await misses(fleet) - before == 12
    homes = [{turn[n].headers["x-cosmos3-replica"] for turn in told} for n in range(12)]
    assert Counter(next(iter(found)) for found in homes) == {"replica-0": 6, "replica-1": 6}
    assert all(len(found) == 1 for found in homes)


async def test_round_robin_encodes_on_both_although_a_header_is_sent(fleet: Fleet, tmp_path: Path) -> None:
    """The gateway under test runs here; the replicas are the fleet's, untouched."""
    real = [Service(r["url"], 8, HeldMedia(10**9, 4096)) for r in fleet.replicas]
    before = await misses(fleet)
    async with world(tmp_path, real=real, secret=fleet.secret, routing="round-robin") as here, here.client() as http:
        canaries = await misses(fleet) - before
        for turn in range(2):
            for number in range(12):
                body = about(video(200 + number), f"question {turn}", **ASKED)
                # One alone in between shifts the turns: a fixed order would send each video to one replica only.
                if turn == 1 and number == 0:
                    await http.post(CHAT, json=text(**ASKED))
                answer = await http.post(CHAT, json=body, headers={"X-Session-ID": f"rr-{number}"}, timeout=120)
                assert (answer.status_code, answer.headers["x-cosmos3-session"]) == (200, "none")
    assert await misses(fleet) - before - canaries == 24


# ---- nothing mixes --------------------------------------------------------------------------------------------------


async def test_equal_names_never_mix_answers(fleet: Fleet) -> None:
    """Two tenants, one session id, one uuid, two videos of different length."""
    urls = {"one": video(300, frames=8), "two": video(301, frames=32)}
    pictures: dict[str, set[tuple[float, ...]]] = {"one": set(), "two": set()}
    for _ in range(3):
        for tenant, url in urls.items():
            body = about(url, "the same words", **TOLD)
            body["messages"][0]["content"][0]["uuid"] = "same"
            async with fleet.client(tenant) as http:
                answer = await http.post(CHAT, json=body, headers={"X-Session-ID": "same"})
            assert answer.status_code == 200, answer.text
            pictures[tenant].add(picture_of(answer))
    assert len(pictures["one"]) == len(pictures["two"]) == 1
    assert pictures["one"] != pictures["two"]


async def test_both_gateways_agree_on_fifty_sessions(fleet: Fleet) -> None:
    homes: dict[int, set[str]] = {n: set() for n in range(50)}
    for _ in range(2):
        for number, found in homes.items():
            async with fleet.client() as http:  # a new connection: the kernel picks a gateway
                answer = await http.post(CHAT, json=text(**ASKED), headers={"X-Session-ID": f"agree-{number}"})
            found.add(answer.headers["x-cosmos3-replica"])
    assert {len(found) for found in homes.values()} == {1}
    assert len(set.union(*homes.values())) == 2
    assert len(set(fleet.ready["gateway_pids"])) == 2


# ---- clients that leave, replicas that die --------------------------------------------------------------------------


async def test_a_client_that_leaves_in_prefill_stops_the_work(fleet: Fleet) -> None:
    async def busy() -> float:
        rows = (await fleet.figures()).values()
        return sum(r["vllm:num_requests_running"] + r["vllm:num_requests_waiting"] for r in rows)

    async def made() -> float:
        return sum(r["vllm:generation_tokens_total"] for r in (await fleet.figures()).values())

    await until_idle(busy, 60)
    before = await made()
    async with fleet.client() as http:
        body = text("leave " + LONG, stream=True, max_completion_tokens=500, ignore_eos=True)
        asking = asyncio.create_task(http.post(CHAT, json=body))
        async with asyncio.timeout(60):
            while not await busy():
                assert not asking.done()
        asking.cancel()
    await until_idle(busy, 120)
    assert await made() - before <= 1  # what the step that was running gave, nothing afterwards


async def test_many_videos_and_sixty_four_questions_at_once(fleet: Fleet) -> None:
    """The encoder cache of a replica holds four of these videos, each replica gets six."""
    urls = [video(400 + n, frames=60, size=(640, 352)) for n in range(12)]
    pids = [r["engine"]["engine_pid"] for r in fleet.replicas]
    numbers = [n % 12 for n in range(64)]
    async with fleet.client() as http:
        answers = await asyncio.gather(*(http.post(CHAT, json=about(urls[n], f"video {n}", **TOLD)) for n in numbers))
    assert {a.status_code for a in answers} == {200}, [a.text for a in answers if a.status_code != 200][:3]
    by_video: dict[int, set[tuple[float, ...]]] = {}
    for number, answer in zip(numbers, answers, strict=True):
        by_video.setdefault(number, set()).add(tuple(round(value, 1) for value in picture_of(answer)))
    # One video and one question have one answer (to a tenth: sums differ with who else is in the batch).
    assert max(len(found) for found in by_video.values()) <= 2
    assert all(psutil.pid_exists(pid) for pid in pids)


async def test_a_home_killed_before_the_first_token_costs_one_retry(fleet: Fleet) -> None:
    session = {"X-Session-ID": "to-be-moved"}
    async with fleet.client() as http:
        first = await http.post(CHAT, json=text(**ASKED), headers=session)
        home = first.headers["x-cosmos3-replica"]
        (victim,) = [r for r in fleet.replicas if r["id"] == home]
        body = text("die " + LONG, stream=True, max_completion_tokens=3, stream_options={"include_usage": True})
        asking = asyncio.create_task(http.post(CHAT, json=body, headers=session))
        async with asyncio.timeout(60):
            while not (await fleet.figures())[home]["vllm:num_requests_running"]:
                assert not asking.done()
        for process in (psutil.Process(victim["engine"]["engine_pid"]),):
            for child in [*process.children(recursive=True), process]:
                child.send_signal(signal.SIGKILL)
        answer = await asking
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-cosmos3-session"] == "moved"
    assert answer.headers["x-cosmos3-replica"] != home
    told = events(answer.text)
    assert told[-1] == "[DONE]"
    assert json.dumps(told).count('"error"') == 0
