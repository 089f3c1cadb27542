"""Each check by records made by hand: what it finds, and that a clean run passes it."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmos3_serve.bench import report, run_folder
from cosmos3_serve.bench.records import Request, Run, Workload
from cosmos3_serve.bench.statistics import levels
from cosmos3_serve.bench.validity import check
from cosmos3_serve.bench.videos import Recipe, Video
from cosmos3_serve.errors import Refusal

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


def clean(tokens: int = 4) -> list[Request]:
    return [request(video, turn, output_tokens=tokens) for video in range(2) for turn in range(2)]


ROBIN = WORK.model_copy(update={"profile": "round-robin"})
# Enough questions that a few of them may leave their session's replica.
LONG = WORK.model_copy(update={"questions": 21})
LONG_ROBIN = LONG.model_copy(update={"profile": "round-robin"})


def plain() -> list[Request]:
    """As round robin asks: no session, and each video on both replicas."""
    return [
        request(video, turn, session=None, headers=(), session_state="none", replica=f"r{(video + turn) % 2}")
        for video in range(2)
        for turn in range(2)
    ]


def long() -> list[Request]:
    return [request(video, turn, started=video * 100.0 + turn, first=video * 100.0 + turn + 0.1,
                    last=video * 100.0 + turn + 0.9, ended=video * 100.0 + turn + 0.99)
            for video in range(2) for turn in range(21)]  # fmt: skip


def plain_long() -> list[Request]:
    return [r.model_copy(update={"session": None, "headers": (), "session_state": "none",
                                 "replica": f"r{(int(r.video[6:11]) + r.turn) % 2}"}) for r in long()]  # fmt: skip


def test_a_clean_run_has_no_finding() -> None:
    assert check(made(clean())) == []
    assert check(made(plain(), ROBIN)) == []
    assert check(made(long(), LONG)) == []
    assert check(made(plain_long(), LONG_ROBIN)) == []


Change = Callable[[list[Request]], list[Request]]


def swap(place: int, **changed: object) -> Change:
    return lambda requests: [
        r.model_copy(update=changed) if number == place else r for number, r in enumerate(requests)
    ]


def every(**changed: object) -> Change:
    return lambda requests: [r.model_copy(update=changed) for r in requests]


def every_time(**changed: float) -> Change:
    """Times of each request, in seconds after its start."""
    return lambda requests: [
        r.model_copy(update={name: r.started + after for name, after in changed.items()}) for r in requests
    ]


def affinity(change: Change) -> Callable[[], Run]:
    return lambda: made(change(clean()))


def robin(change: Change) -> Callable[[], Run]:
    return lambda: made(change(plain()), ROBIN)


CASES: dict[str, tuple[Callable[[], Run], str]] = {
    "an error": (affinity(swap(1, error="ReadTimeout")), "request_failed"),
    "a status": (affinity(swap(1, status=503)), "request_failed"),
    "no text": (affinity(swap(1, first=None, last=None)), "request_failed"),
    "a clock that runs back": (affinity(swap(1, first=0.5, started=1.0)), "clock"),
    "half a session": (affinity(lambda requests: requests[:-1]), "video_incomplete"),
    "a question twice": (affinity(lambda requests: [*requests, requests[-1]]), "video_incomplete"),
    "the right count of the wrong questions": (affinity(swap(1, turn=0)), "video_incomplete"),
    "a video left out": (affinity(lambda requests: requests[:2]), "video_missing"),
    "nothing at all": (affinity(lambda requests: []), "level_missing"),
    "a token too few": (affinity(swap(3, output_tokens=3)), "output_length"),
    "an unknown length": (affinity(swap(3, output_tokens=None)), "output_length"),
    "a strange video": (affinity(swap(0, video="video-00009.mp4")), "video_unlisted"),
    "equal videos": (lambda: made(clean(), same=True), "videos_duplicate"),
    "no video tokens": (affinity(swap(0, video_tokens=0)), "video_not_seen"),
    "video tokens that nobody tells": (affinity(swap(0, video_tokens=None)), "video_not_seen"),
    "no header": (affinity(swap(0, headers=())), "session_header_missing"),
    "no proof of the header": (affinity(swap(0, session_state=None)), "session_header_unproved"),
    "a server that says none": (affinity(swap(0, session_state="none")), "session_header_unproved"),
    "a header on its way to a server that says none": (
        affinity(swap(0, header_seen=True, session_state="none")),
        "session_header_unproved",
    ),
    "a server that said none before the run": (
        lambda: made(every(session_state=None, header_seen=True)(clean())).model_copy(update={"proof_session": "none"}),
        "session_header_unproved",
    ),
    "a header that arrived, and nothing more": (
        affinity(every(session_state=None, header_seen=True, replica=None, cached_tokens=None)),
        "affinity_unproved",
    ),
    "a replica that one answer does not name": (
        affinity(lambda requests: swap(2, replica="r1")(
            every(session_state=None, header_seen=True, replica=None, cached_tokens=None)(requests))),
        "affinity_unproved",
    ),
    "two sessions for a video": (affinity(swap(1, session="s7")), "session_mixed"),
    "a session for two videos": (affinity(every(session="s")), "session_shared"),
    "a session on two replicas": (affinity(swap(1, replica="r9")), "session_scattered"),
    "a move that hides a second replica": (
        lambda: made(swap(9, replica="r9")(swap(5, replica="r7", session_state="moved")(long())), LONG),
        "session_scattered",
    ),
    "a move each time": (affinity(swap(1, replica="r9", session_state="moved")), "affinity_not_kept"),
    "a spill each time": (affinity(swap(1, replica="r9", session_state="spilled")), "affinity_not_kept"),
    "sessions that are new each time": (affinity(swap(1, session_state="new")), "affinity_not_kept"),
    "cold that is warm": (affinity(swap(0, cached_tokens=100)), "cold_is_warm"),
    "warm that is cold": (affinity(swap(1, cached_tokens=0)), "warm_is_cold"),
    "cached tokens of some answers": (affinity(swap(1, cached_tokens=None)), "cached_partial"),
    "a session in round robin": (robin(swap(0, session="s")), "session_header_sent"),
    "its header in round robin": (robin(swap(0, headers=("x-dynamo-session-id",))), "session_header_sent"),
    "a server that keeps sessions": (robin(swap(0, session_state="hit")), "affinity_on"),
    "one that kept one before the run": (
        lambda: made(plain(), ROBIN).model_copy(update={"proof_session": "new"}),
        "affinity_on",
    ),
    "every video on one replica": (
        lambda: made([r.model_copy(update={"replica": f"r{r.video}"}) for r in plain_long()], LONG_ROBIN),
        "round_robin_sticky",
    ),
    "nine of ten questions at the replica of the one before": (
        lambda: made([r.model_copy(update={"replica": f"r{r.turn // 10 % 2}"}) for r in plain_long()], LONG_ROBIN),
        "round_robin_sticky",
    ),
    "all on one replica of a fleet of two": (
        lambda: made([r.model_copy(update={"replica": "r0"}) for r in plain_long()], LONG_ROBIN).model_copy(
            update={"fleet": [2]}),
        "round_robin_sticky",
    ),
    "a foreign fleet of two that is always warm": (
        lambda: made(every(replica=None, session_state=None)(plain_long()), LONG_ROBIN).model_copy(
            update={"fleet": [2]}),
        "round_robin_sticky",
    ),
    "round robin of which nothing tells where it went": (
        robin(every(replica=None, session_state=None)), "round_robin_unproved"),
    "fewer videos than questions in flight": (
        lambda: made([r.model_copy(update={"concurrency": 3}) for r in clean()],
                     WORK.model_copy(update={"concurrency": (3,)})),
        "concurrency_unreached",
    ),
    "a client that asks one after another": (
        lambda: made([r.model_copy(update={"concurrency": 2}) for r in long()],
                     LONG.model_copy(update={"concurrency": (2,)})),
        "concurrency_unreached",
    ),
    "a stream that came at once": (
        lambda: made(every_time(first=0.4999, last=0.5)(clean(8)), WORK.model_copy(update={"output_tokens": 8})),
        "stream_buffered",
    ),
    "a stream in two buffers": (
        lambda: made(every(pieces=8, bursts=2)(clean(8)), WORK.model_copy(update={"output_tokens": 8})),
        "stream_buffered",
    ),
    "a busy client": (lambda: made(every(client_late_s=0.03)(long()), LONG), "client_slow"),
    "a client that pauses between questions": (
        lambda: made(every_time(ended=0.8, last=0.4)(long()), LONG), "client_slow"),
    "a fleet that shrank": (
        lambda: made(clean()).model_copy(update={"fleet": [2, 1]}), "fleet_changed"),
    "more replicas than the caller says": (
        lambda: made(clean()).model_copy(update={"fleet": [1], "fleet_by": "caller"}), "fleet_contradicted"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_check_finds_its_fault(case: str) -> None:
    make, code = CASES[case]
    assert code in [finding.code for finding in check(make())]


@pytest.mark.parametrize("case", CASES)
def test_no_case_leaves_a_figure(case: str, tmp_path: Path) -> None:
    make, code = CASES[case]
    with pytest.raises(Refusal) as refused:
        report.write(make(), tmp_path)
    assert refused.value.stable_code == "run_invalid" and code in [error.field for error in refused.value.errors]
    assert {path.name for path in tmp_path.iterdir()} == {run_folder.RUN, report.RECORDS}
    head = json.loads((tmp_path / run_folder.RUN).read_text())
    assert head["valid"] is False and not {"levels", "temperature_checked"} & head.keys()
    with pytest.raises(Refusal):
        report.read(tmp_path)


def test_a_proxy_may_prove_the_header_instead_of_the_server() -> None:
    proved = [r.model_copy(update={"session_state": None, "header_seen": True}) for r in clean()]
    assert check(made(proved)) == []


@pytest.mark.parametrize("left", [{"replica": None}, {"cached_tokens": None}])
def test_one_thing_that_tells_of_every_question_is_enough(left: dict[str, object]) -> None:
    told = [r.model_copy(update={"session_state": None, "header_seen": True, **left}) for r in clean()]
    assert check(made(told)) == []


def test_a_few_sessions_that_the_server_moved_or_spilled_are_no_fault_and_are_counted() -> None:
    moved = [
        r.model_copy(update={"replica": "r9"}) if r.video == "video-00000.mp4" and r.turn > 6 else r for r in long()
    ]
    moved = swap(7, session_state="moved", cached_tokens=0)(moved)
    moved = swap(30, replica="r9", session_state="spilled", cached_tokens=0)(moved)
    run = made(moved, LONG)
    assert check(run) == []
    assert levels(run)[0].sessions == {"new": 2, "hit": 38, "moved": 1, "spilled": 1}
    row = report.table(levels(run)).splitlines()[1]
    assert ",2,38,1,1," in row and "2 / 38 / 1 / 1" in report.markdown(run, levels(run))


def test_a_question_after_a_spill_is_at_home_again() -> None:
    spilled = swap(30, replica="r9", session_state="spilled")(swap(31, replica="r9")(long()))
    assert "session_scattered" in [finding.code for finding in check(made(spilled, LONG))]


EIGHT = WORK.model_copy(update={"output_tokens": 8})
HONEST: dict[str, Callable[[], Run]] = {
    "two questions that by chance stayed where the ones before were": robin(
        lambda requests: [r.model_copy(update={"replica": f"r{r.video}"}) for r in requests]
    ),
    "round robin on one replica that the server tells": robin(every(replica="r0")),
    "round robin on one replica that the caller tells": lambda: made(
        every(replica=None, session_state=None)(plain()), ROBIN
    ).model_copy(update={"fleet": [1], "fleet_by": "caller"}),
    "always warm on two replicas, but hardly asked": lambda: made(
        every(replica=None, session_state=None)(plain()), ROBIN
    ).model_copy(update={"fleet": [2], "fleet_by": "caller"}),
    "a foreign round robin with a cold question on the second replica": robin(
        lambda requests: swap(1, cached_tokens=0)(every(replica=None, session_state=None)(requests))
    ),
    "a question in each half on the other replica": lambda: made(
        [r.model_copy(update={"replica": f"r{r.turn // 2 % 2}"}) for r in plain_long()], LONG_ROBIN
    ),
    "one answer of several that came at once": lambda: made(swap(0, first=0.4999, last=0.5)(clean(8)), EIGHT),
    "one answer of several in bursts": lambda: made(
        swap(0, pieces=8, bursts=1)(every(pieces=8, bursts=7)(clean(8))), EIGHT
    ),
    "too few tokens to see a pace": affinity(every_time(first=0.4999, last=0.5)),
    "little text between long pauses": lambda: made(every(pieces=2, bursts=1)(clean(8)), EIGHT),
    "a busy client in a run of four questions": affinity(every(client_late_s=1.0)),
    "a client that was late with two of 42": lambda: made(
        swap(3, client_late_s=1.0)(swap(9, client_late_s=1.0)(long())), LONG
    ),
    "a client that was late by less than a tenth of TTFT": lambda: made(
        every(client_late_s=0.03)(every_time(first=0.4)(long())), LONG
    ),
    "as many videos as questions in flight": lambda: made(
        [r.model_copy(update={"concurrency": 2}) for r in clean()], WORK.model_copy(update={"concurrency": (2,)})
    ),
    "a fleet that stayed": lambda: made(clean()).model_copy(update={"fleet": [2, 2]}),
}


@pytest.mark.parametrize("case", HONEST)
def test_an_honest_run_is_not_refused(case: str, tmp_path: Path) -> None:
    run = HONEST[case]()
    assert check(run) == []
    assert len(report.write(run, tmp_path)) == 1


def test_the_documentation_names_every_code() -> None:
    root = Path(__file__).parents[2]
    source = "".join((root / f"src/cosmos3_serve/bench/{name}.py").read_text() for name in ("validity", "conduct"))
    codes = set(re.findall(r"(?:Finding|of_requests)\(\s*\"([a-z_]+)\"", source))
    assert {code for _, code in CASES.values()} == codes, "each has a case that makes it"
    page = (root / "docs/benchmarking.md").read_text()
    assert not {code for code in codes if f"`{code}`" not in page}
