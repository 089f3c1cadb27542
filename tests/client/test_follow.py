"""Following a batch: events, cuts, polling, and the difference between a ledger and a baseline service."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.baseline_server import BaselineServer
from support.ledger_server import LedgerFaults, LedgerServer

from cosmos3_serve.client import follow
from cosmos3_serve.client.deadline import Deadline
from cosmos3_serve.client.events import MAX_LINE_BYTES, Message, parse_events
from cosmos3_serve.client.follow import Follower, fetch_response, hand_over, probe
from cosmos3_serve.client.http import Service
from cosmos3_serve.client.progress import Silent
from cosmos3_serve.errors import Conflict, ContractViolation, Cosmos3RayServeError, Incomplete, Unreachable

SAMPLES = [{"name": name, "prompt": "p", "num_frames": 1, "resolution": "256"} for name in ("a", "b")]
BODY = json.dumps({"samples": SAMPLES, "model": "Cosmos3-Nano", "request_id": "req-1"}).encode()


class Heard(Silent):
    def __init__(self) -> None:
        self.steps: list[tuple[str, int, int]] = []
        self.done: list[tuple[int, int]] = []

    def step(self, sample: str, step: int, total: int) -> None:
        self.steps.append((sample, step, total))

    def samples(self, done: int, total: int) -> None:
        self.done.append((done, total))


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


@pytest.mark.parametrize(
    ("parts", "messages"),
    [
        ([b'id: 7\nevent: sample\ndata: {"a":\ndata: 1}\n\n'], [Message("7", '{"a":\n1}')]),
        ([b": heartbeat\n\n", b"id: 1\r\ndata:x\r\n\r\n"], [Message("1", "x")]),
        ([b"da", b"ta: spl", b"it\n", b"\n"], [Message("", "split")]),
        ([b"data: unfinished\n"], []),
        ([b"id: 3\n\ndata: y\n\n"], [Message("3", "y")]),
    ],
)
async def test_events_are_parsed_across_any_cut(parts: list[bytes], messages: list[Message]) -> None:
    assert [m async for m in parse_events(chunks(*parts))] == messages


@pytest.mark.parametrize(
    "parts",
    [
        [b"data: " + b"x" * MAX_LINE_BYTES] * 2,
        [b"data: yyyyyyyyyyyyyyyy\n" * 10000] * 10,
        [b"data:\n" * 10000] * (MAX_LINE_BYTES // 10000 + 1),
    ],
)
async def test_an_endless_event_is_refused(parts: list[bytes]) -> None:
    with pytest.raises(ContractViolation, match="larger than"):
        [m async for m in parse_events(chunks(*parts))]


async def test_probe_tells_a_ledger_from_a_baseline_service(tmp_path: Path) -> None:
    with BaselineServer(tmp_path / "one") as baseline, LedgerServer(tmp_path / "two") as ledger:
        async with Service(baseline.endpoint, baseline.token, Deadline(30)) as service:
            assert await probe(service, "req-1") == (False, None)
        async with Service(ledger.endpoint, ledger.token, Deadline(30)) as service:
            assert await probe(service, "req-1") == (True, None)
            assert await hand_over(service, BODY, ledger=True) is None
            known, view = await probe(service, "req-1")
    assert known
    assert view is not None and view.request_id == "req-1"


async def test_a_baseline_service_answers_with_the_response(tmp_path: Path) -> None:
    with BaselineServer(tmp_path) as server:
        async with Service(server.endpoint, server.token, Deadline(30)) as service:
            data = await hand_over(service, BODY, ledger=False)
    assert data is not None
    assert json.loads(data)["request_id"] == "req-1"


@pytest.mark.parametrize("no_events", [False, True])
async def test_steps_and_samples_are_heard_and_polling_is_the_fallback(tmp_path: Path, no_events: bool) -> None:
    heard = Heard()
    with LedgerServer(tmp_path, steps=3, step_s=0.02, faults=LedgerFaults(no_events=no_events)) as server:
        async with Service(server.endpoint, server.token, Deadline(30)) as service:
            await hand_over(service, BODY, ledger=True)
            view = await Follower(service, "req-1", heard).wait()
            data = await fetch_response(service, "req-1")
        assert data == server.ledger["req-1"].response
    assert view.state == "succeeded"
    assert heard.done[-1] == (2, 2)
    assert (("b", 3, 3) in heard.steps) is not no_events


async def test_cut_event_streams_are_resumed_by_last_event_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "POLL_S", (0.01, 0.01))
    with LedgerServer(tmp_path, steps=4, step_s=0.02, faults=LedgerFaults(cut_events=3)) as server:
        async with Service(server.endpoint, server.token, Deadline(30)) as service:
            await hand_over(service, BODY, ledger=True)
            view = await Follower(service, "req-1", Silent()).wait()
        assert server.resumed_from[:3] == ["", "2", "4"]
    assert view.state.ended


async def test_a_lost_answer_is_posted_again_only_where_that_is_safe(tmp_path: Path) -> None:
    with LedgerServer(tmp_path / "one", faults=LedgerFaults(lose_posts=1)) as server:
        async with Service(server.endpoint, server.token, Deadline(30)) as service:
            assert await hand_over(service, BODY, ledger=True) is None
            await Follower(service, "req-1", Silent()).wait()
        assert set(server.generated.values()) == {1}
    with BaselineServer(tmp_path / "two") as baseline:
        baseline.faults.drop_posts = 1
        async with Service(baseline.endpoint, baseline.token, Deadline(30)) as service:
            with pytest.raises(Unreachable) as caught:
                await hand_over(service, BODY, ledger=False)
        assert caught.value.sent
        assert len(baseline.batches) == 1


async def test_another_body_under_the_same_id_is_a_conflict(tmp_path: Path) -> None:
    with LedgerServer(tmp_path) as server:
        async with Service(server.endpoint, server.token, Deadline(30)) as service:
            await hand_over(service, BODY, ledger=True)
            with pytest.raises(Conflict) as caught:
                await hand_over(service, BODY.replace(b'"p"', b'"q"'), ledger=True)
    assert caught.value.stable_code == "request_id_conflict"


def forget(server: LedgerServer) -> None:
    server.ledger.clear()


def never_end(server: LedgerServer) -> None:
    server.ledger["req-1"].state = "running"


@pytest.mark.parametrize(
    ("change", "seconds", "kind", "code"),
    [(forget, 60, Cosmos3RayServeError, "batch_unknown"), (never_end, 0.7, Incomplete, "deadline_exceeded")],
)
async def test_waiting_ends_typed(
    tmp_path: Path, change: Callable[[LedgerServer], None], seconds: float, kind: type[Exception], code: str
) -> None:
    with LedgerServer(tmp_path) as server:
        async with Service(server.endpoint, server.token, Deadline(30)) as service:
            await hand_over(service, BODY, ledger=True)
            await Follower(service, "req-1", Silent()).wait()
            change(server)
        async with Service(server.endpoint, server.token, Deadline(seconds)) as service:
            with pytest.raises(kind) as caught:
                await Follower(service, "req-1", Silent()).wait()
    assert caught.value.stable_code == code  # type: ignore[attr-defined]


async def test_what_a_listener_costs_does_not_grow_with_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 4,000 events looks at its own sample, not at all of them."""
    count = 4000
    follower, heard = Follower(Service("http://service", "token", Deadline(60)), "req-1", Heard()), Heard()
    follower._progress, follower._states = heard, {f"s{n}": "queued" for n in range(count)}
    looked, ended = [0], follow._ended

    def counted(state: str) -> bool:
        looked[0] += 1
        return ended(state)

    monkeypatch.setattr(follow, "_ended", counted)
    for number in range(count):
        for state in ("running", "succeeded", "succeeded"):
            follower.changed(f"s{number}", state)
    follower.changed("s0", "queued")  # run again
    assert heard.done[-2:] == [(count, count), (count - 1, count)]
    assert looked[0] <= 7 * count
