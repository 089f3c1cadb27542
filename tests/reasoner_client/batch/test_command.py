"""`cosmos3 reasoner batch` and `cosmos3 queue …` on its place, and a worker that is killed."""

import asyncio
import json
from typing import Any

import pytest
from support import queue_process
from support.gateway import TOKEN, soon
from support.questions import Bench, question
from support.stub_replica import StubReplica

from cosmos3_serve.cli import main


async def command(*words: str) -> int:
    return await asyncio.to_thread(main.run, main.build(), "cosmos3", [*words])


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    monkeypatch.setenv("COSMOS3_REASONER_TOKEN", TOKEN)
    monkeypatch.setenv("XDG_STATE_HOME", str(bench.tmp / "state"))
    monkeypatch.delenv("COSMOS3_REASONER_ENDPOINT", raising=False)


async def test_the_command_prints_the_index_and_resume_goes_on_with_its_options(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bench.write([question(f"q{number}") for number in range(7)])
    words = ["reasoner", "batch", "--input-path", str(path), "--output-path", str(bench.out), "--part-size", "3"]
    words += ["--endpoint", f"{bench.here.url}/v1"]
    assert await command(*words, "--dry-run") == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["samples"], [part["samples"] for part in plan["parts"]]) == (7, [3, 3, 1])
    assert not bench.out.exists()
    assert await command(*words, "--quiet") == 0
    index = json.loads(capsys.readouterr().out)
    assert (index["status"], index["succeeded"]) == ("completed", 7)
    assert await command("queue", "status", str(bench.out), "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["kind"], status["state"], status["samples"]["succeeded"]) == ("reasoner", "ended", 7)
    assert await command("queue", "resume", str(bench.out)) == 0
    assert json.loads(capsys.readouterr().out) == index
    assert await command("batch", "audit", "--all", str(bench.out), "--json") == 0
    assert json.loads(capsys.readouterr().out)["intact"] == 3


async def test_wrong_questions_exit_with_2(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    path = bench.write([question("a", stream=True)])
    words = ["--input-path", str(path), "--output-path", str(bench.out), "--endpoint", bench.here.url]
    assert await command("reasoner", "batch", *words) == 2
    assert "questions.jsonl:1: body.stream" in capsys.readouterr().err
    assert await command("reasoner", "batch", "--input-path", str(path)) == 2
    assert "--output-path" in capsys.readouterr().err


async def test_a_killed_worker_loses_no_answer(bench: Bench) -> None:
    async def passes(stub: StubReplica, request: object, body: object) -> None: ...

    async def waits(stub: StubReplica, request: object, body: object) -> None:
        await asyncio.Event().wait()

    order = bench.order([question(f"q{number}") for number in range(20)], lease_s=3.0)
    options: dict[str, Any] = {name: getattr(order, name) for name in order.__dataclass_fields__}
    environ = {"COSMOS3_REASONER_TOKEN": TOKEN, "HOME": str(bench.tmp)}
    for stub in bench.here.replicas:
        stub.turns = [passes, passes, *[waits] * 20]  # type: ignore[list-item]
    process = queue_process.start(options, environ, bench.tmp / "result")
    logs = bench.tmp / "here" / "answers"
    try:
        await soon(lambda: sum(p.read_text().count('"custom_id"') for p in logs.rglob("*.jsonl")) >= 3, 60)
    finally:
        process.kill()
        await asyncio.to_thread(process.join)
    kept = sum(path.read_text().count('"custom_id"') for path in logs.rglob("answers.jsonl"))
    for stub in bench.here.replicas:
        stub.turns = []
    before = bench.asked
    index = await bench.run(bench.tmp / "questions.jsonl", lease_s=3.0)
    assert (index["status"], index["succeeded"]) == ("completed", 20)
    assert bench.asked - before == 20 - kept
    assert len({line["custom_id"] for line in bench.answers()}) == len(bench.answers()) == 20
