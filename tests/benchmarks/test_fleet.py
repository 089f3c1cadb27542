"""The benchmark of the fleet takes an answer only if it is whole, and a warm one only if it was warm."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import bench_reasoner_fleet as script
import httpx
import pytest
from measure import fleet, warm
from measure.fleet import AFFINITY, ROUND_ROBIN, TOKENS, Answer
from measure.result import InvalidRun, Section

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
    section = fleet.profile_section([(ROUND_ROBIN, said), (AFFINITY, said)], 4.0, 2)
    assert ["encodings of 2 videos", "2", "2", "1.00"] in [list(row) for row in section.rows]


def test_a_profile_s_repeats_are_shown_with_their_spread_and_compared_with_their_neighbour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = profile(monkeypatch, counts(3, 1), counts(3, 1))
    runs = [
        (p, {**said, "req_s": r}) for p, r in ((ROUND_ROBIN, 4.0), (AFFINITY, 8.0), (AFFINITY, 3.0), (ROUND_ROBIN, 2.0))
    ]
    section = fleet.profile_section(runs, 4.0, 2)
    assert ["questions per second", "3.00 (2.00–4.00)", "5.50 (3.00–8.00)", "1.75 (1.50–2.00)"] in section.rows
    assert section.figures["order"] == [ROUND_ROBIN, AFFINITY, AFFINITY, ROUND_ROBIN]
    with pytest.raises(InvalidRun, match="repeats"):
        fleet.profile_section(runs[:3], 4.0, 2)


class Service:
    """In place of a service: what was done with it, and when it ended."""

    def __init__(self, done: list[str], routing: str) -> None:
        self.done, self.routing = done, routing

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.done.append("end")


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ([], [ROUND_ROBIN, "end", AFFINITY, AFFINITY, "warm", "end", ROUND_ROBIN, "end"]),
        (["--only", "profiles"], [ROUND_ROBIN, "end", AFFINITY, AFFINITY, "end", ROUND_ROBIN, "end"]),
        (["--only", "warm"], ["warm", "end"]),
    ],
)
def test_profiles_alternate_with_fresh_videos_and_the_warm_part_comes_after_its_repeats(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, only: list[str], expected: list[str]
) -> None:
    done: list[str] = []
    seeds: list[int] = []

    def measured(service: Service, clips: list[bytes], *_: Any) -> dict[str, Any]:
        seeds.append(int(clips[0]))
        done.append(service.routing)
        return {}

    def warmed(service: Service, rounds: int) -> Section:
        done.append("warm")
        return Section("warm", "", [["a"]])

    monkeypatch.setattr(script, "find_interpreter", lambda _: None)
    monkeypatch.setattr(script, "fleet", lambda _, routing: Service(done, routing))
    monkeypatch.setattr(script, "clips", lambda count, seconds, seed: [str(seed).encode()] * count)
    monkeypatch.setattr(script, "measured", measured)
    monkeypatch.setattr(script, "profile_section", lambda runs, *_: Section("profiles", "", [["a"]]))
    monkeypatch.setattr(script, "warm_section", warmed)
    assert script.main(["--out", str(tmp_path), "--max-load", "1000", *only]) == 0
    assert done == expected
    assert seeds == list(range(len(seeds))), "another seed, other videos"


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


@pytest.mark.parametrize("prefills", [[0.20, 0.22, 0.59], [0.002, 0.09, 0.003], [4.1, 3.9, 4.0]])
def test_questions_of_one_kind_did_the_same_work(prefills: list[float]) -> None:
    warm.steady(warm.NAMED, prefills)


@pytest.mark.parametrize("prefills", [[0.2, 4.1, 0.2], [0.05, 0.21]])
def test_a_row_in_which_some_encoded_again_ends_the_run(prefills: list[float]) -> None:
    with pytest.raises(InvalidRun, match="encoded the video again"):
        warm.steady(warm.NAMED, prefills)


async def test_every_way_to_ask_a_warm_question_names_the_same_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two names would be two clips to the engine, and each could push the other out of a cache."""
    asked: list[tuple[str, dict[str, Any]]] = []
    prefilled = 0.0

    async def ask(http: Any, url: str, body: dict[str, Any]) -> Answer:
        asked.append((url, body["messages"][0]["content"][0]))
        return Answer(0.2, "replica-0", "hit", USAGE)

    async def upload(*_: Any) -> str:
        return "f"

    class Replica(Counting):
        url, headers, secret = "http://gateway", {}, "s"
        replicas = ({"id": "replica-0", "url": "http://replica"},)

        def counted(self) -> dict[str, Counter[str]]:
            nonlocal prefilled
            prefilled += 0.1
            return {"replica-0": Counter({warm.QUEUE: 0, warm.PREFILL: prefilled})}  # type: ignore[dict-item]

    monkeypatch.setattr(warm, "ask", ask)
    monkeypatch.setattr(warm, "upload", upload)
    monkeypatch.setattr(warm, "moving_video", lambda *_, **__: b"clip")
    said = await warm.warm_questions(Replica(), 2)  # type: ignore[arg-type]
    straight = [part for url, part in asked if url.startswith("http://replica")]
    assert len(straight) == 3 * 2 and len({part["uuid"] for part in straight}) == 1
    assert sum(part["video_url"] is None for part in straight) == 3, "by name; the others with bytes, to be decoded"
    assert all(len(rows) == 2 for rows in said["rows"].values())


def test_a_gateway_that_seems_to_cost_less_than_nothing_is_shown_so() -> None:
    cell = {"queue": 0.0, "prefill": 0.1}
    times = {warm.STORE_DATA: 0.19, warm.STORE_FILE: 0.21, warm.NAMED: 0.2, warm.OFF: 0.9}
    said = {"rows": {way: [{**cell, "ttft": t}] for way, t in times.items()}, "first_s": 2.0, "mb": 3.4, "tokens": 8902}
    rows = {row[0]: row for row in warm.section_of(said, 1).rows}
    assert [rows[way][-1] for way in times] == ["-10", "+10", "–", "–"]
    assert [rows[way][-2] for way in times] == ["100", "100", "100", "800"]
