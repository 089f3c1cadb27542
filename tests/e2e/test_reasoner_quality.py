"""Quality gates of the reasoner: whichever way a question takes to real vLLM, the answer is as right as on the plain
way.

The block-world model, one replica on a CPU, 48 questions about 24 drawn clips, whose right answers are known. Plain is:
to the replica itself, the clip's bytes with each question, nothing cached. Every other way may lose one answer. A gate
that cannot fail is none: two videos of a session that are swapped, and two questions, fail it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.fleet import need_engine
from support.gate import Gate
from support.gateway import CHAT, about
from support.processes import left_after
from support.question_gate import (
    ONE_REPLICA,
    SAID,
    Asked,
    Told,
    by_id,
    data_url,
    plainly,
    questions,
    tell,
    through_gateway,
)
from support.real_fleet import TOKENS, RealFleet
from support.service import shared_cache

from cosmos3_serve.reasoner_client.ask import Reasoner

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

GATE = Gate(lost=1, floor=0.75)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    need_engine()
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    with RealFleet(shared_cache(tmp_path_factory), tokens, **ONE_REPLICA) as running:
        yield running
    assert left_after(running.mark) == {}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Asked]:
    return questions(tmp_path_factory.mktemp("clips"))


@pytest.fixture(scope="module")
def plain(fleet: RealFleet, asked: dict[str, Asked]) -> Told:
    return asyncio.run(plainly(fleet, asked))


def two_clips(asked: dict[str, Asked]) -> dict[str, Asked]:
    """The first questions about two clips on which different things happen."""
    happens = {name: it for name, it in asked.items() if name.endswith("-happens")}
    one = next(iter(happens))
    other = next(name for name, it in happens.items() if it.answer != happens[one].answer)
    return {name: happens[name] for name in (one, other)}


# ---- ways -----------------------------------------------------------------------------------------------------------


async def test_cold_and_then_with_the_media_store_and_the_prefix_cache(
    fleet: RealFleet, asked: dict[str, Asked], plain: Told
) -> None:
    cold = await through_gateway(fleet, asked, copy=1)
    assert cold.media() == {"miss", "hit"}, "the premise: a clip's first question brings it, the second names it"
    warm = await through_gateway(fleet, asked, copy=1)
    assert warm.media() == {"hit"} and min(warm.cached_tokens()) > 0
    GATE.check(plain.verdicts, cold.verdicts)
    GATE.check(plain.verdicts, warm.verdicts)


async def test_many_at_once(fleet: RealFleet, asked: dict[str, Asked], plain: Told) -> None:
    GATE.check(plain.verdicts, (await through_gateway(fleet, asked, copy=2, width=16)).verdicts)


async def test_clips_that_were_uploaded(fleet: RealFleet, asked: dict[str, Asked], plain: Told) -> None:
    async with Reasoner(fleet.url, environ={"COSMOS3_REASONER_TOKEN": TOKENS["one"]}) as client:
        urls = {clip: await client.video_url(str(clip)) for clip in {it.clip for it in asked.values()}}
    told = await through_gateway(fleet, asked, copy=3, urls=urls)
    GATE.check(plain.verdicts, told.verdicts)


async def test_with_the_prefix_cache_and_no_media_store(fleet: RealFleet, asked: dict[str, Asked], plain: Told) -> None:
    bodies = {name: about(data_url(it.clip, 4), it.question, **SAID) for name, it in asked.items()}
    async with fleet.inside() as http:
        url = fleet.replicas[0]["url"] + CHAT
        told = await tell(http, url, bodies, asked, 1)
        again = await tell(http, url, bodies, asked, 4)
    assert min(again.cached_tokens()) > 0
    GATE.check(plain.verdicts, told.verdicts)
    GATE.check(plain.verdicts, again.verdicts)


async def test_with_the_media_store_and_no_prefix_cache(fleet: RealFleet, asked: dict[str, Asked], plain: Told) -> None:
    async with fleet.inside() as http:
        url = fleet.replicas[0]["url"] + CHAT
        ids = {it.clip: f"held-{it.clip.stem}" for it in asked.values()}
        first = {it.clip: name for name, it in reversed(asked.items())}
        await tell(http, url, {n: by_id(asked[n], ids[clip], copy=7) for clip, n in first.items()}, asked, 4)
        before = await fleet.processed()
        bodies = {n: by_id(it, ids[it.clip], cache_salt=f"salt-{n}") for n, it in asked.items()}
        told = await tell(http, url, bodies, asked, 4)
        assert await fleet.processed() == before and set(told.cached_tokens()) == {0}, "the premise"
    GATE.check(plain.verdicts, told.verdicts)


# ---- what a gate must see -------------------------------------------------------------------------------------------


async def test_two_videos_of_a_session_that_are_swapped_fail_it(
    fleet: RealFleet, asked: dict[str, Asked], plain: Told
) -> None:
    """As if the gateway's table of what a replica holds mixed them up: each is named by the other's id."""
    pair = two_clips(asked)
    one, other = pair
    brought = {name: by_id(it, f"id-{name}", copy=5) for name, it in pair.items()}
    named = {name: by_id(it, f"id-{name}") for name, it in pair.items()}
    crossed = {one: by_id(pair[one], f"id-{other}"), other: by_id(pair[other], f"id-{one}")}
    async with fleet.inside() as http:
        url = fleet.replicas[0]["url"] + CHAT
        for bodies in (brought, named):
            told = await tell(http, url, bodies, pair, 1)
            GATE.check(plain.verdicts, plain.verdicts | told.verdicts)
        told = await tell(http, url, crossed, pair, 1)
    with pytest.raises(AssertionError, match=f"wrong here: .*{one}"):
        GATE.check(plain.verdicts, plain.verdicts | told.verdicts)


async def test_two_questions_that_are_swapped_fail_it(fleet: RealFleet, asked: dict[str, Asked], plain: Told) -> None:
    one, other = list(asked)[:2]
    assert asked[one].clip == asked[other].clip
    mixed = {
        one: replace(asked[one], question=asked[other].question),
        other: replace(asked[other], question=asked[one].question),
    }
    told = await through_gateway(fleet, mixed, copy=6)
    with pytest.raises(AssertionError, match=f"wrong here: .*{one}"):
        GATE.check(plain.verdicts, plain.verdicts | told.verdicts)
