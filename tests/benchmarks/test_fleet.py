"""The benchmark of the fleet takes an answer only if it is whole, and a warm one only if it was warm."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import httpx
import pytest
from measure import fleet, warm
from measure.fleet import AFFINITY, ROUND_ROBIN, TOKENS, Answer
from measure.result import InvalidRun

FIRST = {"choices": [{"delta": {"content": "x"}}]}
USAGE = {"prompt_tokens": 100, "completion_tokens": TOKENS,
         "prompt_tokens_details": {"cached_tokens": 90, "multimodal_tokens": {"video": 80}}}  # fmt: skip
WHOLE = [FIRST, {"choices": [], "usage": USAGE}, "[DONE]"]


def told(*events: Any) -> str:
    return "".join(f"data: {e if isinstance(e, str) else json.dumps(e)}\n\n" for e in events)


async def asked(status: int, text: str) -> Answer:
    headers = {"x-cosmos3-replica": "replica-0", "x-cosmos3-media": "hit"}
    transport = httpx.MockTransport(lambda _: httpx.Response(status, text=text, headers=headers))
    async with httpx.AsyncClient(transport=transport) as http:
        return await fleet.ask(http, "http://t", fleet.question(fleet.data_part(b"x"), "What?"))


async def test_a_whole_answer_counts() -> None:
    answer = await asked(200, told(*WHOLE))
    assert answer.ttft_s > 0 and (answer.replica, answer.media) == ("replica-0", "hit")
    assert answer.usage == USAGE


@pytest.mark.parametrize(
    ("status", "text", "reason"),
    [
        (503, "busy", "HTTP 503"),
        (200, told(*WHOLE[:-1]), "DONE"),
        (200, told({"error": {"message": "lost"}}, *WHOLE), "error event"),
        (200, told(*WHOLE[1:]), "tokens asked for"),
        (200, told(FIRST, {"choices": [], "usage": {**USAGE, "completion_tokens": 1}}, "[DONE]"), "tokens asked for"),
        (200, told(FIRST, {"choices": [], "usage": {**USAGE, "prompt_tokens_details": {}}}, "[DONE]"), "video tokens"),
    ],
)
async def test_any_other_ends_the_run(status: int, text: str, reason: str) -> None:
    with pytest.raises(InvalidRun, match=reason):
        await asked(status, text)


class Counting:
    """Stands for a service whose replicas count what they are told to."""

    def __init__(self, *rows: dict[str, Counter[str]]) -> None:
        self.rows = list(rows)

    def counted(self) -> dict[str, Counter[str]]:
        return self.rows.pop(0)


def counts(done: int, misses: int) -> Counter[str]:
    queries = {"vllm:mm_cache_queries_total": done, "vllm:mm_cache_hits_total": done - misses}
    return Counter({"vllm:request_success_total": done, **queries})


def profile(monkeypatch: pytest.MonkeyPatch, *after: Counter[str]) -> dict[str, Any]:
    async def conversations(service: Any, clips: list[bytes], questions: int, at_once: int) -> list[list[Answer]]:
        return [[Answer(0.1, "r", "hit", USAGE) for _ in range(questions)] for _ in clips]

    monkeypatch.setattr(fleet, "conversations", conversations)
    ids = [f"replica-{n}" for n in range(len(after))]
    service = Counting({i: counts(0, 0) for i in ids}, dict(zip(ids, after, strict=True)))
    return fleet.measured(service, [b"v"] * 4, 3, 2)  # type: ignore[arg-type]


def test_a_profile_is_what_both_replicas_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    said = profile(monkeypatch, counts(3, 1), counts(3, 1))
    assert (said["questions"], said["videos"], said["encodings"]) == (6, 2, 2)
    assert said["by_replica"] == {"replica-0": 3, "replica-1": 3} and said["cached_share"] == 0.9
    section = fleet.profile_section({ROUND_ROBIN: said, AFFINITY: said}, 4.0, 2)
    assert ["encodings of 2 videos", 2, 2, "1.00"] in [list(row) for row in section.rows]


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ((counts(6, 2), counts(0, 0)), "not reached"),
        ((counts(3, 1), counts(2, 1)), "replicas counted"),
        ((counts(3, 1), counts(3, 0)), "encodings"),
    ],
)
def test_a_profile_that_does_not_add_up_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, after: tuple[Counter[str], ...], reason: str
) -> None:
    with pytest.raises(InvalidRun, match=reason):
        profile(monkeypatch, *after)


def test_a_question_that_was_not_warm_ends_the_run() -> None:
    first = Answer(1.0, "replica-0", "miss", USAGE)
    warm.check(warm.STORE_DATA, Answer(0.1, "replica-0", "hit", USAGE), first)
    cold = {**USAGE, "prompt_tokens_details": {"cached_tokens": 10}}
    for way, answer in (
        (warm.STORE_DATA, Answer(0.1, "replica-0", "miss", USAGE)),
        (warm.STORE_FILE, Answer(0.1, "replica-1", "hit", USAGE)),
        (warm.OFF, Answer(0.1, "", "", cold)),
    ):
        with pytest.raises(InvalidRun):
            warm.check(way, answer, first)
