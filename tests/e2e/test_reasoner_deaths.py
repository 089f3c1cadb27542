"""What dies in the fleet of `test_reasoner_answers`: the table's actor, a home, and at last the service. In this order:
each test leaves less than it found."""

from __future__ import annotations

import asyncio
import json
import signal

import psutil
import pytest
from support.gateway import CHAT, about, events, text
from support.processes import left_after
from support.real_fleet import (
    ASKED,
    Door,
    RealFleet,
    are_in_flight,
    held_up,
    home_of,
    retries,
    session_of,
    until,
    video,
)

from cosmos3_serve.reasoner.engine.liveness import IDLE_S, QUIET_S

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

REPLACED_S = 400.0


async def test_both_gateways_agree_on_fifty_sessions_also_while_the_table_restarts(reasoner: RealFleet) -> None:
    one, two = reasoner.gateways
    homes: dict[str, set[str]] = {f"agree-{number}": set() for number in range(50)}
    async with reasoner.door(one) as first, reasoner.door(two) as second:

        async def ask(door: Door, known: bool) -> None:
            for session, found in homes.items():
                answer = await door.post(CHAT, json=text(**ASKED), headers={"X-Session-ID": session})
                found.add(home_of(answer))
                assert session_of(answer) == ("hit" if known else "new")

        await ask(first, known=False)
        await ask(second, known=True)
        actor = reasoner.process("ray::FleetActor")
        actor.send_signal(signal.SIGKILL)
        fresh: dict[str, set[str]] = {}
        for number in range(8):  # sessions that begin while nobody owns the table: both gateways place them alike
            found = fresh.setdefault(f"fresh-{number}", set())
            for door in (first, second) if number % 2 else (second, first):
                answer = await door.post(CHAT, json=text(**ASKED), headers={"X-Session-ID": f"fresh-{number}"})
                found.add(home_of(answer))
                assert session_of(answer) in ("new", "hit")
        await ask(first, known=True)
        await ask(second, known=True)
        await until(lambda: back(first), 60)
        assert not actor.is_running()
        homes |= fresh  # they stay where they began
        await ask(second, known=True)
        await ask(first, known=True)
    assert {len(found) for found in homes.values()} == {1}
    assert len(homes) == 58
    assert set.union(*homes.values()) == {"replica-0", "replica-1"}


async def back(door: Door) -> bool:
    """The table answers, and has been told all sessions."""
    answer = await door.get("/v1/sessions")
    if answer.status_code == 503:
        return False
    table = answer.json()["table"]
    return bool(table["gateways"] == 2 and table["sessions"] >= 58)


async def test_an_engine_that_computes_nothing_is_told_from_one_that_works(reasoner: RealFleet) -> None:
    """Its server answers /health all the while, and it is idle when its core stops: a token that is asked for tells."""

    async def told(words: str, *, at_end: bool = False) -> bool:
        async with reasoner.client() as http:
            (check,) = [c for c in (await http.get("/ready")).json()["checks"] if c["name"] == "replicas"]
        reason = str(check["reason"])
        return reason.endswith(words) if at_end else words in reason

    await reasoner.idle()
    with held_up(reasoner.engine("replica-0")):
        await until(lambda: told("1 of them have work and compute nothing"), IDLE_S + QUIET_S + 60)
        answers = await reasoner.ask([text(**ASKED)] * 6, [{"X-Session-ID": f"elsewhere-{n}"} for n in range(6)])
        assert {home_of(answer) for answer in answers} == {"replica-1"}
    await until(lambda: told("2 of 2 replicas serve", at_end=True), 60)


async def test_a_home_killed_before_the_first_token_costs_one_retry_and_a_suspect_none(reasoner: RealFleet) -> None:
    """A question about a video that was answered before goes to the other replica. One of which nothing is known may be
    what killed the engine: it is not tried again, by us or when the client sends it again."""
    session = {"X-Session-ID": "to-be-moved"}
    gateway = reasoner.gateways[0]
    known = about(video(800), "first", **ASKED)
    suspect = text("perhaps this one kills", max_completion_tokens=3)
    async with (
        reasoner.door(gateway) as asking,
        reasoner.door(gateway) as suspected,
        reasoner.door(gateway) as looking,
    ):
        await suspected.get("/health")
        first = await asking.post(CHAT, json=known, headers=session)
        home = home_of(first)
        server = reasoner.engine(home)
        tree = [*server.children(recursive=True), server]
        before = await retries(looking)
        await until(lambda: are_in_flight(looking, 0), 30)
        with held_up(server):
            body = about(video(800), "die", stream=True, max_completion_tokens=3)
            asked = asyncio.create_task(asking.post(CHAT, json=body, headers=session))
            await until(lambda: are_in_flight(looking, 1), 30)
            unknown = asyncio.create_task(suspected.post(CHAT, json=suspect, headers=session))
            await until(lambda: are_in_flight(looking, 2), 30)
            await asyncio.sleep(1)
            assert not asked.done() and not unknown.done()
            for process in tree:
                process.kill()
            answer, lost = await asyncio.gather(asked, unknown)
        resent = await suspected.post(CHAT, json=suspect)
        after = await retries(looking)
        again = await asking.post(CHAT, json=known, headers=session)
    assert (lost.status_code, lost.json()["error"]["code"]) == (503, "replica_lost_on_request")
    assert (resent.status_code, resent.json()["error"]["code"]) == (503, "request_suspected")
    assert int(resent.headers["retry-after"]) >= 1
    assert answer.status_code == 200, answer.text
    assert session_of(answer) == "moved"
    assert home_of(answer) != home
    told = events(answer.text)
    assert told[-1] == "[DONE]"
    assert json.dumps(told).count('"error"') == 0
    assert after - before == 1
    assert (home_of(again), session_of(again)) == (home_of(answer), "hit")


@pytest.mark.slow  # a real engine loads once more; `test_reasoner_faults` has this with a stand-in
async def test_the_killed_engine_is_replaced_in_its_place_and_moves_nothing(reasoner: RealFleet) -> None:
    old = {r["engine"]["engine_pid"] for r in reasoner.replicas}

    async def replaced() -> bool:
        async with reasoner.client() as http:
            rows = (await http.get("/system-info")).json()["replicas"]
        return [row["phase"] for row in rows] == ["ready"] * 2 and {row["engine"]["engine_pid"] for row in rows} != old

    await until(replaced, REPLACED_S)
    (answer,) = await reasoner.ask([text(**ASKED)], [{"X-Session-ID": "to-be-moved"}])
    assert session_of(answer) == "hit"


def test_nothing_is_left_when_the_service_is_killed(reasoner: RealFleet) -> None:
    assert psutil.pid_exists(reasoner.pid)
    reasoner.kill()
    assert left_after(reasoner.mark, 30.0) == {}
