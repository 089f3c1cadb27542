"""The parts that a figure stands on: what is counted, what is refused, and how a big artifact is made."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from measure import big_artifact, load
from measure.health import all_in_flight
from measure.result import InvalidRun, Section, quantile, report
from support.core import start_core
from support.fakes import FakeClock

from cosmos3_serve.errors import ServiceFailure


def service(body: Any, status: int = 200) -> httpx.Client:
    return httpx.Client(base_url="http://t", transport=httpx.MockTransport(lambda _: httpx.Response(status, json=body)))


def answered(*statuses: str, artifacts: int | None = None) -> dict[str, Any]:
    count = len(statuses) if artifacts is None else artifacts
    return {"outputs": [{"status": status} for status in statuses], "artifacts": [{}] * count}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (answered("success", "error"), 200),
        (answered("success", "skip"), 200),
        (answered("success"), 200),
        (answered("success", "success", "success"), 200),
        (answered("success", "success", artifacts=1), 200),
        (answered("success", "success"), 409),
    ],
)
def test_a_batch_that_is_not_wholly_there_is_refused(body: Any, status: int) -> None:
    with pytest.raises(InvalidRun):
        load.response(service(body, status), "/v1/batches/x", 2)
    assert load.response(service(answered("success", "success")), "/v1/batches/x", 2)


def test_a_batch_that_was_not_accepted_or_whose_events_broke_off_is_refused() -> None:
    with pytest.raises(InvalidRun, match="429"):
        load.post(service({}, 429), load.samples(1))
    with pytest.raises(InvalidRun, match="broke off"):
        load.wait(service({}), "/v1/batches/x")


@pytest.mark.parametrize("ended", [0, 1])
def test_health_is_timed_only_while_every_batch_is_in_flight(ended: int) -> None:
    states = ["running"] * 4 + ["queued"] * (12 - ended) + ["succeeded"] * ended
    places = [f"/v1/batches/{i}" for i in range(len(states))]

    def view(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"state": states[places.index(request.url.path)]})

    http = httpx.Client(base_url="http://t", transport=httpx.MockTransport(view))
    if ended:
        with pytest.raises(InvalidRun, match="15 of 16"):
            all_in_flight(http, places)
    else:
        assert all_in_flight(http, places) == 16


def test_sizes_are_what_was_added_between_two_looks() -> None:
    def metrics(*counts: int) -> httpx.Client:
        lines = [
            f'cosmos3_generator_{kind}_batch_size_bucket{{le="{bound}.0"}} {count}.0'
            for kind in ("coalesced", "inference")
            for bound, count in zip((1, 2, 4), counts, strict=True)
        ]
        return httpx.Client(
            base_url="http://t", transport=httpx.MockTransport(lambda _: httpx.Response(200, text="\n".join(lines)))
        )

    before, after = load.Sizes(metrics(3, 5, 5)), load.Sizes(metrics(4, 6, 9))
    assert after.since(before, "coalesced_batch_size") == {1: 1, 4: 3}
    assert load.shown({1: 1, 4: 3}) == "3 of 4, 1 of 1"


def test_quantiles() -> None:
    values = [float(i) for i in range(1, 101)]
    assert [quantile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert quantile([7.0], 0.99) == 7.0


@pytest.mark.parametrize("failure", [InvalidRun("three samples failed"), ServiceFailure("three samples failed")])
def test_an_invalid_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], failure: Exception) -> None:
    def broken() -> list[Section]:
        raise failure

    assert report("x", broken, tmp_path / "out", about="") == 3
    said = capsys.readouterr()
    assert said.out == "" and "three samples failed" in said.err
    assert not (tmp_path / "out").exists()


async def test_a_grown_artifact_is_declared_with_its_new_size_and_hash(tmp_path: Path) -> None:
    core = await start_core(tmp_path, FakeClock())
    await core.submit("a", "b", id="r")
    body = await core.finish("r")
    await core.coordinator.close()
    path = body["artifacts"][0]["path"]
    digest = big_artifact.inflate(core.root, path, 3_000_000)
    core = await start_core(tmp_path, FakeClock())
    found = await core.coordinator.artifact(path, tenant="t")
    assert (found.bytes, found.sha256) == (3_000_000, digest)
    assert hashlib.sha256(found.path.read_bytes()).hexdigest() == digest
    other = await core.coordinator.artifact(body["artifacts"][1]["path"], tenant="t")
    assert other.sha256 == body["artifacts"][1]["sha256"]
    await core.coordinator.close()


def test_results_of_this_repository_say_what_they_are() -> None:
    results = Path(load.__file__).parents[1] / "results"
    for path in results.glob("????-??-??-generator*.json"):
        conditions = json.loads(path.read_text())["conditions"]
        assert conditions["weights"] == "random" and "load average" in conditions, path.name
        assert path.name.startswith(conditions["date"])
