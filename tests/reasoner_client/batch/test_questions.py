"""What a line must be, and how the body of a part is made."""

import json

from support.questions import question

from cosmos3_serve.queue.sources import InputFile, Start
from cosmos3_serve.queue.split import Group, Sourced
from cosmos3_serve.reasoner_client.batch.questions import Questions, first_media
from cosmos3_serve.reasoner_client.batch.runner import Part
from cosmos3_serve.storage.location import open_store

FORM = Questions("model-of-the-flag")


def start(name: str = "questions.jsonl") -> Start:
    return Start(InputFile(name, open_store("/tmp").store, name), "m", "")


def body(*items: dict[str, object]) -> dict[str, object]:
    group = Group([Sourced(dict(item), f"questions.jsonl:{n}") for n, item in enumerate(items, 1)])
    return dict(json.loads(FORM.body(group, start(), "id")))


def test_a_question_keeps_its_fields_and_gets_the_model() -> None:
    made = body(question("a", temperature=0), question("b", model="another"))
    assert made["request_id"] == "id"
    bodies = [request["body"] for request in made["requests"]]  # type: ignore[attr-defined]
    assert [b["model"] for b in bodies] == ["model-of-the-flag", "another"]
    assert bodies[0]["temperature"] == 0


def test_the_size_is_that_of_the_body() -> None:
    items = [question(f"q{n}", "ä" * n, video="s3://b/k.mp4") for n in range(50)]
    group = Group([Sourced(item, "x") for item in items])
    assert len(FORM.body(group, start(), "id")) <= sum(map(FORM.item_bytes, items)) + 1024


def test_questions_about_one_video_follow_each_other() -> None:
    requests = [question(f"q{n}", video=f"s3://b/{n % 3}.mp4") for n in range(9)]
    ordered = Part(b"", requests).by_media()
    assert [request["custom_id"] for request in ordered] == ["q0", "q3", "q6", "q1", "q4", "q7", "q2", "q5", "q8"]
    assert first_media(requests[4]["body"]) == "s3://b/1.mp4"
    assert first_media({"messages": ["odd", {"content": [{"type": "video_url"}]}]}) == ""
