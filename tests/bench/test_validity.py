"""Each check by records made by hand: what it finds, and that a clean run passes it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmos3_serve.bench.records import Request, Run, Workload
from cosmos3_serve.bench.validity import check
from cosmos3_serve.bench.videos import Recipe, Video

WORK = Workload(profile="session-affinity", videos=2, questions=2, output_tokens=4, concurrency=(1,))


def request(video: int, turn: int, **changed: object) -> Request:
    start = video * 10.0 + turn
    fields = {
        "repeat": 0, "concurrency": 1, "video": f"video-{video:05d}.mp4", "turn": turn, "session": f"s{video}",
        "headers": ("x-dynamo-session-id",), "started": start, "first": start + 0.1, "last": start + 0.4,
        "ended": start + 0.5, "status": 200, "prompt_tokens": 120, "output_tokens": 4,
        "cached_tokens": 100 if turn else 0, "video_tokens": 100, "replica": f"r{video}",
        "session_state": "hit" if turn else "new",
    }  # fmt: skip
    return Request.model_validate(fields | changed)


def made(requests: list[Request], work: Workload = WORK, same: bool = False) -> Run:
    hashes = ["a" * 64, "a" * 64 if same else "b" * 64]
    videos = [Video(name=f"video-{n:05d}.mp4", sha256=sha, bytes=1) for n, sha in enumerate(hashes)]
    return Run(workload=work, recipe=Recipe(), videos=videos, model="m", server="s", weights="random", load="hand",
               machine={}, started_at="2026-01-01T00:00:00+00:00", requests=requests)  # fmt: skip


def clean() -> list[Request]:
    return [request(video, turn) for video in range(2) for turn in range(2)]


def test_a_clean_run_has_no_finding() -> None:
    assert check(made(clean())) == []


def swap(place: int, **changed: object) -> Callable[[list[Request]], list[Request]]:
    return lambda requests: [
        r.model_copy(update=changed) if number == place else r for number, r in enumerate(requests)
    ]


CASES: dict[str, tuple[Callable[[list[Request]], list[Request]], str]] = {
    "an error": (swap(1, error="ReadTimeout"), "request_failed"),
    "a status": (swap(1, status=503), "request_failed"),
    "no text": (swap(1, first=None, last=None), "request_failed"),
    "a clock that runs back": (swap(1, first=0.5, started=1.0), "clock"),
    "half a session": (lambda requests: requests[:-1], "video_incomplete"),
    "a question twice": (lambda requests: [*requests, requests[-1]], "video_incomplete"),
    "the right count of the wrong questions": (swap(1, turn=0), "video_incomplete"),
    "a video left out": (lambda requests: requests[:2], "video_missing"),
    "nothing at all": (lambda requests: [], "level_missing"),
    "a token too few": (swap(3, output_tokens=3), "output_length"),
    "an unknown length": (swap(3, output_tokens=None), "output_length"),
    "a strange video": (swap(0, video="video-00009.mp4"), "video_unlisted"),
    "no video tokens": (swap(0, video_tokens=0), "video_not_seen"),
    "video tokens that nobody tells": (swap(0, video_tokens=None), "video_not_seen"),
    "no header": (swap(0, headers=()), "session_header_missing"),
    "no proof of the header": (swap(0, session_state=None), "session_header_unproved"),
    "a server that says none": (swap(0, session_state="none"), "session_header_unproved"),
    "a header on its way to a server that says none": (
        swap(0, header_seen=True, session_state="none"),
        "session_header_unproved",
    ),
    "two sessions for a video": (swap(1, session="s7"), "session_mixed"),
    "a session for two videos": (
        lambda requests: [r.model_copy(update={"session": "s"}) for r in requests],
        "session_shared",
    ),
    "a session on two replicas": (swap(1, replica="r9"), "session_scattered"),
    "cold that is warm": (swap(0, cached_tokens=100), "cold_is_warm"),
    "warm that is cold": (swap(1, cached_tokens=0), "warm_is_cold"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_check_finds_its_fault(case: str) -> None:
    change, code = CASES[case]
    assert code in [finding.code for finding in check(made(change(clean())))]


def test_equal_videos_are_found() -> None:
    assert [finding.code for finding in check(made(clean(), same=True))] == ["videos_duplicate"]


def test_a_proxy_may_prove_the_header_instead_of_the_server() -> None:
    proved = [r.model_copy(update={"session_state": None, "header_seen": True}) for r in clean()]
    assert check(made(proved)) == []


def test_a_session_that_the_server_moved_is_no_fault() -> None:
    moved = swap(1, replica="r9", session_state="moved", cached_tokens=0)(clean())
    assert check(made(moved)) == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"session": "s"}, "session_header_sent"),
        ({"headers": ("x-dynamo-session-id",)}, "session_header_sent"),
        ({"session_state": "hit"}, "affinity_on"),
    ],
)
def test_round_robin_is_pure(change: dict[str, object], code: str) -> None:
    work = WORK.model_copy(update={"profile": "round-robin"})
    plain = [r.model_copy(update={"session": None, "headers": (), "session_state": "none"}) for r in clean()]
    assert check(made(plain, work)) == []
    changed = [plain[0].model_copy(update=change), *plain[1:]]
    assert code in [finding.code for finding in check(made(changed, work))]


def test_the_documentation_names_every_code() -> None:
    root = Path(__file__).parents[2]
    source = (root / "src/cosmos3_serve/bench/validity.py").read_text()
    codes = set(re.findall(r"(?:Finding|_of)\(\s*\"([a-z_]+)\"", source))
    page = (root / "docs/benchmarking.md").read_text()
    mine = Path(__file__).read_text()
    assert len(codes) > 15 and not {code for code in codes if f'"{code}"' not in mine}, "each has a case that makes it"
    assert not {code for code in codes if f"`{code}`" not in page}
