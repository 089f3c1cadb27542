"""A batch of questions end to end, in process: the real gateway, stub replicas, folders and a real S3 API."""

import asyncio
import json
from pathlib import Path

import pytest
from support.gateway import TOKEN, about, data_url, soon, video, world
from support.questions import Bench, question
from support.s3 import boto
from support.stub_replica import StubReplica, says

from cosmos3_serve.errors import Conflict, Cosmos3Error, ValidationFailed
from cosmos3_serve.publication.audit import Outcome, audit_place
from cosmos3_serve.publication.audit_all import audit_all
from cosmos3_serve.queue import planning
from cosmos3_serve.queue.place import QueuePlace
from cosmos3_serve.queue.progress import Silent
from cosmos3_serve.queue.records import Limits
from cosmos3_serve.queue.run import run_queue_async
from cosmos3_serve.queue.work import Task
from cosmos3_serve.reasoner_client.batch.questions import Questions
from cosmos3_serve.reasoner_client.batch.runner import ReasonerWork
from cosmos3_serve.storage.location import open_store
from cosmos3_serve.trial.local_s3 import LocalS3


async def test_every_question_is_answered_once_and_published(bench: Bench) -> None:
    questions = [question(f"q{number}", f"What is {number}?") for number in range(25)]
    index = await bench.run(questions)
    assert (index["status"], index["succeeded"], len(index["parts"])) == ("completed", 25, 3)
    answers = bench.answers()
    assert [line["custom_id"] for line in answers] == [q["custom_id"] for q in questions]
    assert all(line["response"]["body"]["choices"][0]["message"]["content"].startswith("r") for line in answers)
    assert bench.asked == 25
    audits = await audit_all(open_store(str(bench.out)))
    assert audits.counts() == {"intact": 3, "faulty": 0, "unfinished": 0, "absent": 0}
    record = json.loads((bench.out / "parts/00001/provenance.json").read_bytes())
    assert (record["weights"], record["service"]["weights"]) == ("random", "random")
    assert record["usage"] == {"prompt_tokens": 120, "completion_tokens": 30, "total_tokens": 150}
    assert not any((bench.tmp / "here" / "answers").iterdir()), "answers stay only until they are published"
    assert await bench.run(questions) == index
    assert bench.asked == 25, "a finished batch asks nothing"


async def test_what_the_service_refuses_is_named_and_the_rest_is_published(bench: Bench) -> None:
    questions = [question("good"), question("bad", model="no-such-model"), question("also good")]
    with pytest.raises(Cosmos3Error) as caught:
        await bench.run(questions)
    assert caught.value.stable_code == "samples_failed"
    assert [error.field for error in caught.value.errors] == ["00001/bad"]
    lines = {line["custom_id"]: line for line in bench.answers()}
    assert lines["bad"]["response"] is None
    assert lines["bad"]["error"]["code"] == "model_not_found"
    assert lines["good"]["error"] is lines["also good"]["error"] is None
    found = await audit_place(open_store(str(bench.out / "parts/00001")))
    assert (found.outcome, found.status) == (Outcome.INTACT, "partial")
    index = await bench.run(questions, allow_partial=True)
    assert (index["status"], index["failed"]) == ("partial", 1)


async def test_frame_options_of_a_line_are_obeyed_or_named(bench: Bench) -> None:
    messages = about(data_url(video()))["messages"]  # eight frames
    counts = {"three": 3, "nine": 9}
    questions = [question(n, messages=messages, mm_processor_kwargs={"num_frames": c}) for n, c in counts.items()]
    index = await bench.run(questions, allow_partial=True)
    assert (index["status"], index["succeeded"]) == ("partial", 1)
    lines = {line["custom_id"]: line for line in bench.answers()}
    assert lines["nine"]["error"]["code"] == "media_option_invalid"
    assert "8 frames" in lines["nine"]["error"]["message"]
    (sent,) = [body for stub in bench.here.replicas for body in stub.asked]
    assert sent["media_io_kwargs"] == {"video": {"min_frames": 3, "max_frames": 3}}


async def test_a_part_without_any_answer_is_not_published(bench: Bench) -> None:
    with pytest.raises(Cosmos3Error) as caught:
        await bench.run([question("a", model="no-such-model"), question("b", model="no-such-model")])
    assert {error.message.partition(":")[0] for error in caught.value.errors} == {"model_not_found"}
    assert not list(bench.out.glob("parts/*/provenance.json"))
    index = json.loads((bench.out / "index.json").read_bytes())
    assert [part["status"] for part in index["parts"]] == ["failed"]


async def test_a_full_service_and_a_dying_replica_lose_nothing(bench: Bench) -> None:
    first, second = bench.here.replicas
    first.turns = [says(429, "full", "TooManyRequests", {"retry-after": "0"})] * 3
    second.turns = [says(500, "a passing fault", "InternalServerError")]
    index = await bench.run([question(f"q{number}") for number in range(12)])
    assert index["status"] == "completed"
    assert len(bench.answers()) == 12


async def test_a_stopped_run_goes_on_without_asking_again(bench: Bench) -> None:
    questions = [question(f"q{number}") for number in range(8)]

    async def passes(stub: StubReplica, request: object, body: object) -> None: ...

    async def waits(stub: StubReplica, request: object, body: object) -> None:
        await asyncio.Event().wait()

    def kept() -> int:
        logs = (bench.tmp / "here" / "answers").rglob("answers.jsonl")
        return sum(log.read_text().count('"custom_id"') for log in logs)

    for stub in bench.here.replicas:
        stub.turns = [passes, *[waits] * 8]  # type: ignore[list-item]
    running = asyncio.create_task(bench.run(questions))
    await soon(kept)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    for stub in bench.here.replicas:
        stub.turns = []
    before, answered = bench.asked, kept()
    assert 0 < answered < 8
    assert (await bench.run(questions))["status"] == "completed"
    assert bench.asked - before == 8 - answered, "what was kept is not asked again"
    assert len(bench.answers()) == 8


async def test_two_machines_share_a_batch(bench: Bench) -> None:
    questions = [question(f"q{number}") for number in range(60)]
    path = bench.write(questions)
    first, second = await asyncio.gather(bench.run(path, "one"), bench.run(path, "two"))
    assert first == second
    assert (first["status"], len(first["parts"])) == ("completed", 6)
    assert bench.asked == 60
    assert len(bench.answers()) == 60


async def test_two_workers_of_one_part_publish_one_set_of_answers(bench: Bench) -> None:
    """A lease can be lost while its holder goes on: the claims of the place let one outcome through."""

    place = QueuePlace.at(str(bench.out))
    path = bench.write([question(f"q{number}") for number in range(6)])
    plan = await planning.make(place, str(path), Limits(), form=Questions("nvidia/cosmos3-nano-reasoner"))
    (part,) = plan.parts
    environ = {"COSMOS3_REASONER_TOKEN": TOKEN}
    results = await asyncio.gather(
        *(
            ReasonerWork(journal_dir=bench.tmp / name, concurrency=2)
            .runner(lambda text: None, environ)
            .run(
                Task(part, place.batch(plan, part), place.part(part.name), bench.here.url, False, False), lambda n: None
            )
            for name in ("one", "two")
        )
    )
    assert results[0] == results[1]
    assert len(bench.answers()) == 6
    assert (await audit_place(open_store(place.part(part.name)))).outcome is Outcome.INTACT


@pytest.mark.parametrize("alter", ["drop a line", "swap two", "edit an answer", "foreign file", "count"])
async def test_an_altered_publication_is_found(bench: Bench, alter: str) -> None:
    await bench.run([question(f"q{number}") for number in range(3)])
    folder = bench.out / "parts/00001"
    answers, record = folder / "artifacts/answers.jsonl", folder / "provenance.json"
    lines = answers.read_text().splitlines(keepends=True)
    manifest = json.loads(record.read_bytes())
    if alter == "drop a line":
        answers.write_text("".join(lines[:-1]))
    elif alter == "swap two":
        answers.write_text("".join([lines[1], lines[0], lines[2]]))
    elif alter == "edit an answer":
        answers.write_text("".join(lines).replace("word", "sword", 1))
    elif alter == "foreign file":
        (folder / "artifacts/more.jsonl").write_text("{}")
    else:
        record.write_text(json.dumps({**manifest, "answered": 2}))
    found = await audit_place(open_store(str(folder)))
    assert found.outcome is Outcome.FAULTY
    codes = {fault.code for fault in found.faults}
    wanted = {"foreign file": "undeclared", "count": "record_differs"}.get(alter, "sha256_differs")
    assert wanted in codes


async def test_wrong_questions_are_named_by_line_before_anything_is_asked(bench: Bench) -> None:
    questions = [
        question("fine"),
        question("fine"),
        question("", "no id"),
        {**question("typo"), "bdy": 1},
        question("streamed", stream=True),
        question("local", video="/tmp/clip.mp4"),
        question("no key", video="s3://bucket/"),
        {**question("path"), "url": "/v1/embeddings"},
        {"custom_id": "empty", "body": {"messages": []}},
    ]
    with pytest.raises(ValidationFailed) as caught:
        await bench.run(questions)
    fields = [error.field.removeprefix("questions.jsonl:") for error in caught.value.errors]
    assert fields == [
        "2",
        "3: custom_id",
        "4: bdy",
        "5: body.stream",
        "6: body.messages[0].content[0].video_url.url",
        "7: body.messages[0].content[0].video_url.url",
        "8: url",
        "9: body.messages",
    ]
    assert caught.value.exit_code == 2
    assert bench.asked == 0
    assert not bench.out.exists() or not list(bench.out.rglob("*.json"))


async def test_the_place_of_a_generators_queue_is_refused(bench: Bench, tmp_path: Path) -> None:

    samples = tmp_path / "samples.jsonl"
    samples.write_text('{"name": "a", "model_mode": "text2image", "prompt": "a cube"}\n')
    await planning.make(QueuePlace.at(str(bench.out)), str(samples), Limits())
    with pytest.raises(Conflict, match="generator") as caught:
        await bench.run([question("a")])
    assert caught.value.stable_code == "queue_differs"


async def test_a_wrong_token_ends_at_once(bench: Bench) -> None:

    order = bench.order([question("a")])
    with pytest.raises(Cosmos3Error) as caught:
        await run_queue_async(order, Silent(), environ={"COSMOS3_REASONER_TOKEN": "wrong"})
    assert caught.value.stable_code == "invalid_api_key"


async def test_videos_in_s3_meet_their_replica_again(
    tmp_path: Path, s3_server: LocalS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty questions about five videos: every video is encoded by one replica, once."""
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
    s3_server.create_bucket("clips")
    for number in range(5):
        boto(s3_server.environ).put_object(Bucket="clips", Key=f"v/{number}.mp4", Body=video(number))
    questions = [question(f"v{n % 5}-{n}", f"And {n}?", video=f"s3://clips/v/{n % 5}.mp4") for n in range(40)]
    async with world(tmp_path, replicas=2, allowed_s3_roots="s3://clips/") as here:
        bench = Bench(tmp_path, here)
        index = await bench.run(questions, work={"part_size": 20})
        assert (index["status"], index["succeeded"]) == ("completed", 40)
        encoded = [digest for stub in here.replicas for digest in stub.encoded]
        assert len(set(encoded)) == 5
        assert len(encoded) == 5, "a video met a replica that did not hold it"


async def test_all_three_paths_may_stand_in_one_file(bench: Bench) -> None:
    questions = [
        question("chat"),
        {"custom_id": "completion", "url": "/v1/completions", "body": {"prompt": "It moves"}},
        {"custom_id": "response", "url": "/v1/responses", "body": {"input": "What moves?"}},
    ]
    assert (await bench.run(questions))["status"] == "completed"
    held = {line["custom_id"]: line["response"]["body"].keys() for line in bench.answers()}
    assert "choices" in held["chat"] and "choices" in held["completion"] and "output" in held["response"]


async def test_each_path_says_what_it_lacks(bench: Bench) -> None:
    lacking = [
        {"custom_id": "completion", "url": "/v1/completions", "body": {"messages": []}},
        {"custom_id": "response", "url": "/v1/responses", "body": {}},
    ]
    with pytest.raises(ValidationFailed) as caught:
        await bench.run(lacking)
    assert [e.field.partition(": ")[2] for e in caught.value.errors] == ["body.prompt", "body.input"]
