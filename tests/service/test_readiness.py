"""Readiness: never ready by accident."""

import asyncio

from cosmos3_serve.service.readiness import Finding, Readiness, Remembered


async def test_every_check_reports_with_its_reason() -> None:
    readiness = Readiness(timeout_s=0.05)

    async def fine() -> tuple[bool, str]:
        return True, "2 replicas"

    async def hangs() -> tuple[bool, str]:
        await asyncio.Event().wait()
        return True, "never"

    def raises() -> tuple[bool, str]:
        raise KeyError("a secret")

    readiness.add("replicas", fine)
    readiness.add("canary", hangs)
    readiness.add("weights", raises)
    readiness.add("queue", lambda: (False, "full"))
    assert await readiness.findings() == [
        Finding("replicas", True, "2 replicas"),
        Finding("canary", False, "no answer within 0.05 s"),
        Finding("weights", False, "the check itself failed (KeyError)"),
        Finding("queue", False, "full"),
    ]


async def test_an_expensive_check_is_asked_once_per_period_whoever_asks() -> None:
    calls, now = [], [0.0]

    async def costly() -> tuple[bool, str]:
        calls.append(1)
        await asyncio.sleep(0)
        return True, str(len(calls))

    check = Remembered(costly, 2.0, clock=lambda: now[0])
    assert await asyncio.gather(*(check() for _ in range(10))) == [(True, "1")] * 10
    now[0] = 2.5
    assert await check() == (True, "2")


async def test_how_long_an_answer_is_remembered_may_depend_on_it() -> None:
    said, now = [(False, "starts"), (True, "runs"), (True, "still runs")], [0.0]

    async def ask() -> tuple[bool, str]:
        return said.pop(0)

    check = Remembered(ask, lambda answer: 5.0 if answer[0] else 1.0, clock=lambda: now[0])
    seen = []
    for now[0] in (0.0, 0.9, 1.1, 5.9, 6.2):
        seen.append((await check())[1])
    assert seen == ["starts", "starts", "runs", "runs", "still runs"]


async def test_a_failure_to_check_is_not_remembered() -> None:
    calls: list[int] = []

    async def fails_once() -> tuple[bool, str]:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("away")
        return True, "back"

    readiness = Readiness()
    readiness.add("serve", Remembered(fails_once, 60.0))
    assert [f.ok for f in await readiness.findings()] == [False]
    assert [f.ok for f in await readiness.findings()] == [True]
