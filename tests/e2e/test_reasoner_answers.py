"""Questions through two real gateways to two real vLLM servers on real Ray, counted in vLLM's own metrics.

Nothing here breaks the fleet; `test_reasoner_surface` asks the same fleet next, and
`test_reasoner_deaths` breaks it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from support import clips
from support.gateway import CHAT, about, data_url, text, world
from support.readme import ask_as_written
from support.real_fleet import (
    ASKED,
    STEP_TOKENS,
    TOKENS,
    TOLD,
    RealFleet,
    are_in_flight,
    held_up,
    home_of,
    numbers,
    session_of,
    until,
    video,
)
from tokenizers import Tokenizer

from cosmos3_serve.reasoner.fleet.member import HeldMedia, Service
from cosmos3_serve.reasoner.setup import MODEL_NAME, SECRET_HEADER
from cosmos3_serve.reasoner.tls import pinned
from cosmos3_serve.reasoner_client import smoke
from cosmos3_serve.reasoner_client.ask import Reasoner

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

VIDEOS = 14
IN_TURN = 3  # at once: with two others in flight no replica is so far ahead that new sessions skip it
WORDS = ("What happens?", "Which colour is the square?", "Where does it go?", "Is it fast?", "Count the bars, please.")
# Two tokens a word: most of a step of the engine, and three of them. A step takes a second or so.
LONG, LONGER = "word " * 1_600, "word " * 6_500
# Paths that a replica serves; none of them is the gateway's.
INNER = (
    ("GET", "/version"), ("GET", "/load"), ("GET", "/ping"), ("POST", "/tokenize"), ("POST", "/detokenize"),
    ("POST", "/v1/messages"), ("POST", "/reset_mm_cache"),
)  # fmt: skip
FIGURES = (
    "vllm:num_requests_running", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
    "vllm:mm_cache_queries_total", "vllm:mm_cache_hits_total", "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total", "vllm:time_to_first_token_seconds_count", "vllm:inter_token_latency_seconds_count",
)  # fmt: skip
SERVES = ("/-/healthz", "/-/routes", "/docs", "/openapi.json")


def picture_of(answer: httpx.Response) -> dict[str, float]:
    """The most likely first tokens and their logprobs: what tells answers apart."""
    (first, *_) = answer.json()["choices"][0]["logprobs"]["content"]
    return {top["token"]: top["logprob"] for top in first["top_logprobs"]}


def distance(one: dict[str, float], other: dict[str, float]) -> float:
    """The largest difference of a logprob; a token that only one of them has counts as the least likely there."""
    floors = min(one.values()), min(other.values())
    return max(abs(one.get(token, floors[0]) - other.get(token, floors[1])) for token in one | other)


# ---- the surface ----------------------------------------------------------------------------------------------------


async def test_the_openai_client_asks_about_a_video(reasoner: RealFleet) -> None:
    import openai  # a second of CPU, for this worker alone

    client = openai.AsyncOpenAI(base_url=f"{reasoner.url}/v1", api_key=TOKENS["one"])
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
    usage = None
    async for chunk in stream:
        pieces += [choice.delta.content or "" for choice in chunk.choices]
        usage = chunk.usage or usage
    assert "".join(pieces) == whole.choices[0].message.content
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    (model,) = [m async for m in client.models.list()]
    assert model.id == MODEL_NAME
    assert model.model_extra is not None
    assert model.model_extra["weights"] == "random"
    assert model.model_extra["max_model_len"] >= 16384
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model=MODEL_NAME, messages=messages, max_completion_tokens=10**7)
    assert "10000000" in str(refused.value)
    assert str(model.model_extra["max_model_len"]) in str(refused.value)


async def test_ready_tells_its_checks(reasoner: RealFleet) -> None:
    async with reasoner.client() as http:
        report = (await http.get("/ready")).json()
    assert report["status"] == "ready"
    assert {c["name"] for c in report["checks"]} >= {"registry", "replicas", "canary", "serve"}
    assert reasoner.ready["weights"] == "random"


async def test_no_route_of_a_replica_is_on_the_public_port(reasoner: RealFleet) -> None:
    """The same requests reach a route with the secret on a replica, and none on the public port."""
    async with reasoner.inside() as inside, reasoner.client() as outside:
        for method, path in INNER:
            found = await inside.request(method, reasoner.replicas[0]["url"] + path)
            assert found.status_code not in (401, 404), path
            assert (await outside.request(method, path)).status_code == 404, path
        for path in SERVES:
            assert (await outside.get(path)).status_code == 404, path
    async with httpx.AsyncClient(base_url=reasoner.url) as stranger:
        for path in ("/health", "/metrics", "/v1/models", "/", *SERVES, *(path for _, path in INNER)):
            assert (await stranger.get(path)).status_code == 401, path


async def test_every_path_of_a_replica_demands_the_secret(reasoner: RealFleet) -> None:
    for replica in reasoner.replicas:
        async with httpx.AsyncClient(base_url=replica["url"], timeout=30, verify=pinned(reasoner.secret)) as http:
            for path in ("/health", "/metrics", "/v1/models", "/no", *SERVES, *(path for _, path in INNER)):
                for headers in ({}, {SECRET_HEADER: "wrong"}, {"Authorization": f"Bearer {reasoner.secret}"}):
                    assert (await http.get(path, headers=headers)).status_code == 401, path
            assert (await http.post(CHAT, json=text())).status_code == 401
            right = {SECRET_HEADER: reasoner.secret}
            assert (await http.get("/health", headers=right)).status_code == 200
            answer = await http.post(CHAT, json=text(**ASKED), headers=right)
            assert answer.json()["usage"]["completion_tokens"] == 1


async def test_replicas_listen_on_loopback_only(reasoner: RealFleet) -> None:
    assert len({r["url"] for r in reasoner.replicas}) == 2
    listening = {
        (c.laddr.ip, f"https://127.0.0.1:{c.laddr.port}" == replica["url"])
        for replica in reasoner.replicas
        for process in (reasoner.engine(replica["id"]), *reasoner.engine(replica["id"]).children(recursive=True))
        for c in process.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN
    }
    assert ("127.0.0.1", True) in listening
    assert {ip for ip, _ in listening} == {"127.0.0.1"}


async def test_smoke_passes(reasoner: RealFleet) -> None:
    async with Reasoner(reasoner.url, environ={"COSMOS3_REASONER_TOKEN": TOKENS["one"]}) as client:
        found = await smoke.smoke(client, seconds=6)
    assert found["video_tokens"] > 1000
    assert found["description"]


async def test_the_readme_s_code_asks_as_written(reasoner: RealFleet, tmp_path: Path) -> None:
    clip = base64.b64decode(video(960).partition(",")[2])
    said = await asyncio.to_thread(ask_as_written, reasoner.url, TOKENS["one"], tmp_path, clip)
    first, second = (line[-3:] for line in said if line and line[-1].startswith("replica-"))
    assert (first[:2], second[:2]) == (["new", "miss"], ["hit", "hit"])
    assert first[2] == second[2]


async def test_the_gateways_show_the_engines_own_figures(reasoner: RealFleet) -> None:
    await reasoner.ask([about(video(970), f"question {n}", **ASKED) for n in range(4)])
    await reasoner.idle()
    async with reasoner.client() as http:

        async def the_same() -> bool:
            shown, told = (await http.get("/metrics")).text, await reasoner.figures()
            return all(
                numbers(shown, f'{name}{{replica="{replica}"').total() == rows[name]
                for replica, rows in told.items()
                for name in FIGURES
            )

        await until(the_same, 30)  # engines are asked at most once in five seconds
        shown = (await http.get("/metrics")).text
    for replica in ("replica-0", "replica-1"):
        assert numbers(shown, f'vllm:generation_tokens_total{{replica="{replica}"').total() > 0
        assert f'vllm:kv_cache_usage_perc{{replica="{replica}"' in shown


async def test_explained_frames_cost_what_the_engine_counts(reasoner: RealFleet) -> None:
    (answer,) = await reasoner.ask([about(video(901, frames=40), cosmos3={"explain": True}, **ASKED)])
    (media,) = answer.json()["cosmos3"]["media"]
    counted = answer.json()["usage"]["prompt_tokens_details"]["multimodal_tokens"]["video"]
    # The engine counts the timestamps' words with the video: some tokens for each pair of frames.
    own, pairs = media["sampling"]["tokens"], len(media["sampling"]["timestamps_s"])
    assert own + 4 * pairs <= counted <= own + 12 * pairs


GRID = (
    *({"mm_processor_kwargs": {"num_frames": count}} for count in (1, 2, 3, 5, 20, 21, 64, 65)),
    *({"mm_processor_kwargs": {"fps": fps}} for fps in (0.01, 0.5, 1.99, 5, 25, 26, 60)),
    {"mm_processor_kwargs": {"videos_kwargs": {"num_frames": 7}}},
    {"mm_processor_kwargs": {"max_frames": 3}},
    {"media_io_kwargs": {"video": {"num_frames": 9}}},
    {"media_io_kwargs": {"video": {"num_frames": -1}}},
    {"media_io_kwargs": {"video": {"num_frames": -1}}, "mm_processor_kwargs": {"fps": 4}},
    {"media_io_kwargs": {"video": {"min_frames": 12, "max_frames": 13}}},
    {"media_io_kwargs": {"video": {"num_frames": 9}}, "mm_processor_kwargs": {"num_frames": 8}},
)


STAMP = re.compile(r"<([0-9.]+) seconds>")


def tokens_of(fleet: RealFleet) -> tuple[int, int, Tokenizer]:
    """The tokens that stand for patches of videos and of pictures, and the tokenizer."""
    command = fleet.engine("replica-0").cmdline()
    checkpoint = Path(command[command.index("--model") + 1])
    config = json.loads((checkpoint / "config.json").read_bytes())
    return config["video_token_id"], config["image_token_id"], Tokenizer.from_file(str(checkpoint / "tokenizer.json"))


async def test_frame_options_are_obeyed_to_the_token_or_refused_by_name(reasoner: RealFleet) -> None:
    """What `explain` shows is what the engine's prompt holds: every token of the video, every timestamp."""
    used = Counter[tuple[int, int, int]]()
    video_token, _, words = tokens_of(reasoner)
    async with reasoner.client() as http:
        for frames in (2, 20, 50, 64):
            for fps in (2, 25, 30):
                clip = data_url(clips.clip(frames=frames, fps=fps, size=(128, 96)))
                for options in GRID:
                    body = about(clip, cosmos3={"explain": True}, return_token_ids=True, **options, **ASKED)
                    answer = await http.post(CHAT, json=body)
                    told = answer.json()
                    if answer.status_code == 400:
                        error = told["error"]
                        assert error["code"] == "media_option_invalid", (frames, fps, options, error)
                        assert error["param"].split(".")[0] in options
                        assert error["remedy"]
                        continue
                    assert answer.status_code == 200, (frames, fps, options, told)
                    sampling = told["cosmos3"]["media"][0]["sampling"]
                    pairs = len(sampling["timestamps_s"])
                    prompt = told["prompt_token_ids"]
                    assert prompt.count(video_token) == sampling["tokens"] == pairs * 4 * 3, (frames, fps, options)
                    assert told["usage"]["prompt_tokens"] == len(prompt)
                    stamps = [float(stamp) for stamp in STAMP.findall(words.decode(prompt, skip_special_tokens=False))]
                    assert stamps == pytest.approx(sampling["timestamps_s"], abs=0.051), (frames, fps, options)
                    used[frames, fps, len(sampling["indices"])] += 1
    assert {count for frames, _, count in used if frames == 64} >= {2, 3, 5, 7, 9, 12, 13, 20, 21, 64}
    assert {count for frames, _, count in used if frames == 2} == {2}


BUDGETS: tuple[dict[str, Any], ...] = (
    {"max_pixels": 40_000},
    {"min_pixels": 600_000},
    {"size": {"longest_edge": 40_000}},
    {"size": {"shortest_edge": 600_000, "longest_edge": 700_000}},
    {"OWN": {"size": {"longest_edge": 40_000}}},
    {"size": {"longest_edge": 40_000}, "OWN": {"size": {"shortest_edge": 20_000}}},
    {"size": {"longest_edge": 40_000}, "OWN": {"max_pixels": 90_000}},
    {"max_pixels": 40_000, "OWN": {"size": {"longest_edge": 90_000}}},
)


async def test_pixel_budgets_cost_what_the_engine_counts(reasoner: RealFleet) -> None:
    tokens = dict(zip(("video", "image"), tokens_of(reasoner)[:2], strict=True))
    picture = {"type": "image_url", "image_url": {"url": data_url(clips.picture("PNG"), "image/png")}}
    for kind in tokens:
        own = f"{kind}s_kwargs"
        capped: list[dict[str, Any]] = [{"cap_pixels_per_frame": True, "max_pixels": 100_000}]
        for budget in [*BUDGETS, *(capped if kind == "video" else [])]:
            kwargs = {own if name == "OWN" else name: value for name, value in budget.items()}
            body = about(video(1, size=(320, 192)), mm_processor_kwargs=kwargs, return_token_ids=True, **ASKED)
            if kind == "image":
                body["messages"][0]["content"][0] = picture
            (answer,) = await reasoner.ask([{**body, "cosmos3": {"explain": True}}])
            (media,) = answer.json()["cosmos3"]["media"]
            told = media["sampling"]["tokens"] if kind == "video" else media["tokens"]
            assert answer.json()["prompt_token_ids"].count(tokens[kind]) == told, kwargs


async def test_clips_of_one_request_share_its_frame_options_and_same_frames_an_encoding(reasoner: RealFleet) -> None:
    video_token, *_ = tokens_of(reasoner)
    short, long = (data_url(clips.clip(frames=frames, fps=25, size=(128, 96))) for frames in (51, 99))
    both = about(short, mm_processor_kwargs={"fps": 4}, cosmos3={"explain": True}, return_token_ids=True, **ASKED)
    both["messages"] += [{"role": "assistant", "content": "Yes."}, *about(long)["messages"]]
    head = {"X-Session-ID": "frames-of-both"}
    (answer,) = await reasoner.ask([both], [head])
    told = answer.json()
    sampled = [media["sampling"] for media in told["cosmos3"]["media"]]
    assert [len(sampling["indices"]) for sampling in sampled] == [8, 15]
    assert told["prompt_token_ids"].count(video_token) == sum(sampling["tokens"] for sampling in sampled)
    ways = ({"fps": 4}, {"num_frames": 8}, {"fps": 5, "max_frames": 8})
    answers = [await reasoner.ask([about(short, mm_processor_kwargs=way, **ASKED)], [head]) for way in ways]
    assert [answer.headers["x-cosmos3-media"] for (answer,) in answers] == ["miss", "hit", "hit"]
    before = await reasoner.processed()
    (again,) = await reasoner.ask([both], [head])
    assert (again.headers["x-cosmos3-media"], await reasoner.processed()) == ("hit", before)


# ---- who encodes ----------------------------------------------------------------------------------------------------


def homes_of(turns: Sequence[Sequence[httpx.Response]]) -> list[str]:
    """The home of each session; AssertionError if one has two."""
    found = [{home_of(answer) for answer in session} for session in zip(*turns, strict=True)]
    assert all(len(homes) == 1 for homes in found)
    return [home for (home,) in found]


async def test_affinity_encodes_each_of_twelve_videos_once(reasoner: RealFleet) -> None:
    before = await reasoner.processed()
    told = []
    for turn in range(8):
        bodies = [about(video(n), f"question {turn}", **ASKED) for n in range(12)]
        heads = [{"X-Session-ID": f"affinity-{n}"} for n in range(12)]
        told.append(await reasoner.ask(bodies, heads, width=IN_TURN))
    assert await reasoner.processed() - before == 12
    assert Counter(homes_of(told)) == {"replica-0": 6, "replica-1": 6}
    assert [session_of(answer) for answer in told[0]] == ["new"] * 12
    assert {session_of(answer) for turn in told[1:] for answer in turn} == {"hit"}


async def test_keys_from_content_give_the_same_spread(reasoner: RealFleet) -> None:
    before = await reasoner.processed()
    told = []
    for turn in range(8):
        bodies = [about(video(100 + n), f"question {turn}", **ASKED) for n in range(12)]
        told.append(await reasoner.ask(bodies, width=IN_TURN))
    assert await reasoner.processed() - before == 12
    assert Counter(homes_of(told)) == {"replica-0": 6, "replica-1": 6}


async def test_round_robin_encodes_on_both_although_a_header_is_sent(reasoner: RealFleet, tmp_path: Path) -> None:
    """The gateway under test runs here; the replicas are the fleet's, untouched."""
    real = [Service(r["url"], 8, HeldMedia(10**9, 4096)) for r in reasoner.replicas]
    settings = {"routing": "round-robin", "replica_tls": True}
    async with world(tmp_path, real=real, secret=reasoner.secret, **settings) as here, here.client() as http:
        before = await reasoner.processed_by()
        asked: Counter[str] = Counter()
        for turn in range(8):
            for number in range(12):
                body = about(video(200 + number), f"question {turn}", **ASKED)
                # One alone in between shifts the turns: a fixed order would send each video to one replica only.
                if turn == 1 and number == 0:
                    await http.post(CHAT, json=text(**ASKED))
                answer = await http.post(CHAT, json=body, headers={"X-Session-ID": f"rr-{number}"}, timeout=120)
                assert (answer.status_code, session_of(answer)) == (200, "none")
                asked[home_of(answer)] += 1
        after = await reasoner.processed_by()
    assert {replica: after[replica] - before[replica] for replica in after} == {"replica-0": 12, "replica-1": 12}
    assert asked == {"replica-0": 48, "replica-1": 48}


# ---- nothing mixes --------------------------------------------------------------------------------------------------


async def test_equal_names_never_mix_answers(reasoner: RealFleet) -> None:
    """One session id, one uuid, two videos of different length: of two tenants, and of one."""
    urls = (video(300, frames=8), video(301, frames=32))
    pictures: tuple[list[dict[str, float]], ...] = ([], [])
    for tenants in (("one", "two"), ("one", "one")):
        for _ in range(3):
            for tenant, url, found in zip(tenants, urls, pictures, strict=True):
                body = about(url, "the same words", **TOLD)
                body["messages"][0]["content"][0]["uuid"] = "same"
                async with reasoner.client(tenant) as http:
                    answer = await http.post(CHAT, json=body, headers={"X-Session-ID": "same"})
                assert answer.status_code == 200, answer.text
                found.append(picture_of(answer))
    one, two = pictures
    assert len(one) == len(two) == 6
    within = max(distance(a, b) for same in (one, two) for a in same for b in same)
    assert 10 * within < min(distance(a, b) for a in one for b in two)


async def test_a_tenant_cannot_find_out_what_another_has_asked(reasoner: RealFleet) -> None:
    """A right guess of a prompt is cached for its own tenant only, and a video is a hit for who has asked about it."""
    secret = "The account 4711 0815 is to be paid nine million before Friday. " * 12
    seen: dict[str, list[int]] = {"one": [], "two": []}
    for tenant in ("one", "one", "two"):
        async with reasoner.client(tenant) as http:
            body = text(secret + "What is the sum?", **ASKED, cache_salt="mine")
            answer = await http.post(CHAT, json=body, headers={"X-Session-ID": "guess"})
            assert answer.status_code == 200, answer.text
            details = answer.json()["usage"].get("prompt_tokens_details") or {}
            seen[tenant].append(details.get("cached_tokens") or 0)
    assert seen["one"][0] == 0 and seen["one"][1] > 100, "the premise: what is cached shows"
    assert seen["two"] == [0]
    told = []
    for tenant in ("one", "one", "two"):
        async with reasoner.client(tenant) as http:
            answer = await http.post(CHAT, json=about(video(320), "What happens?", **ASKED))
            assert answer.status_code == 200, answer.text
            told.append(answer.headers["x-cosmos3-media"])
    assert told == ["miss", "hit", "miss"]


async def test_a_replica_that_lost_a_video_gets_it_again(reasoner: RealFleet) -> None:
    """The gateways believe that it holds the video, and name it only."""
    session = [{"X-Session-ID": "forgotten"}]
    body = about(video(310), "what is left?", **TOLD)
    (first,) = await reasoner.ask([body], session)
    async with reasoner.inside() as http:
        for replica in reasoner.replicas:
            assert (await http.post(f"{replica['url']}/reset_mm_cache")).status_code == 200
    before = await reasoner.processed()
    (again,) = await reasoner.ask([body], session)
    assert await reasoner.processed() - before >= 1
    assert home_of(again) == home_of(first)
    assert distance(picture_of(first), picture_of(again)) < 0.01


async def test_many_videos_and_sixty_four_questions_at_once(reasoner: RealFleet) -> None:
    """Each replica gets more of these videos than its encoder cache holds, and 64 different questions are on their way,
    in two sweeps over the videos."""
    urls = [video(400 + n, frames=24 + 3 * n, size=(320, 192)) for n in range(VIDEOS)]
    bodies = [about(urls[n % VIDEOS], WORDS[n // VIDEOS], **TOLD) for n in range(64)]
    heads = [{"X-Session-ID": f"many-{n % VIDEOS}"} for n in range(64)]
    await reasoner.ask([text(**ASKED)] * VIDEOS, heads[:VIDEOS], width=1)  # one by one, so every other one each
    alone: dict[int, dict[str, float]] = {}
    tokens: Counter[str] = Counter()
    few = asyncio.Semaphore(4)

    async def questions_of(first: int) -> None:
        same = range(first, 64, VIDEOS)
        async with few:  # in turn: all but the first are warm
            answers = await reasoner.ask([bodies[n] for n in same], [heads[n] for n in same], width=1)
        alone.update(zip(same, map(picture_of, answers), strict=True))
        usage = answers[0].json()["usage"]["prompt_tokens_details"]["multimodal_tokens"]
        tokens[home_of(answers[0])] += usage["video"]

    await asyncio.gather(*map(questions_of, range(VIDEOS)))
    assert len(tokens) == 2
    assert min(tokens.values()) > STEP_TOKENS, "the premise: a replica's videos do not fit into its encoder cache"
    numbers = sorted(range(64), key=lambda n: (n // VIDEOS // 3, n % VIDEOS))
    answers = await reasoner.ask([bodies[n] for n in numbers], [heads[n] for n in numbers], width=64)
    for number, answer in zip(numbers, answers, strict=True):
        found = picture_of(answer)
        assert min(alone, key=lambda n, found=found: distance(alone[n], found)) == number
    for replica in reasoner.replicas:
        assert reasoner.engine(replica["id"]).is_running()


# ---- a client that leaves -------------------------------------------------------------------------------------------


async def test_a_client_that_leaves_in_prefill_stops_the_work(reasoner: RealFleet) -> None:
    """Three long questions reach a replica while its engine is held up. The last one always comes into a step in which
    there is room for a part of it only, so that it is in the middle of its prefill when the one before is answered; and
    it is so long that some steps are still to come."""
    session = {"X-Session-ID": "leaves"}
    (first,) = await reasoner.ask([text(**ASKED)], [session])
    await reasoner.idle()
    before = await reasoner.total("generation_tokens_total")
    async with reasoner.client() as http, reasoner.client() as leaving:
        await until(lambda: are_in_flight(http, 0), 30)
        with held_up(reasoner.engine(home_of(first))):
            ahead = [
                asyncio.create_task(http.post(CHAT, json=text(word + LONG, **ASKED), headers=session))
                for word in ("first ", "second ")
            ]
            await until(lambda: are_in_flight(http, 2), 30)
            body = text("last " + LONGER, stream=True, max_completion_tokens=500, ignore_eos=True)
            leaves = asyncio.create_task(leaving.post(CHAT, json=body, headers=session))
            await until(lambda: are_in_flight(http, 3), 30)
            await asyncio.sleep(1)
        answers = await asyncio.gather(*ahead)
        await until(lambda: reasoner.are_running(1), 60)
        assert await reasoner.total("generation_tokens_total") - before == 2, "the last one has a token already"
        assert not leaves.done()
        leaves.cancel()
    await reasoner.idle()
    assert await reasoner.total("generation_tokens_total") - before == 2
    # What the order of events rests on.
    shortest = min(answer.json()["usage"]["prompt_tokens"] for answer in answers)
    assert 3 * shortest > 2 * STEP_TOKENS
    assert shortest * len(LONGER) / len(LONG) - 2 * (STEP_TOKENS - shortest) > 2 * STEP_TOKENS
