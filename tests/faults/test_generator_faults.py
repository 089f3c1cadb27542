"""The generator as it is deployed, over an engine, replicas and a disk that fail: typed errors, nothing lost, no hang.

Order matters to the clock only: what breaks more comes later, and each test waits until the service works again.
"""

from __future__ import annotations

import concurrent.futures
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.crowd import forty_of_fifty_leave
from support.faults import Faulty, Memory, sample, states, until
from support.processes import all_gone
from support.scripted_engine import STEP_S
from support.service import client, readiness_until

from cosmos3_serve.service.reaper import descendants

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
MB = 1_000_000


@pytest.fixture
def http(faulty: Faulty) -> Any:
    with client(faulty) as opened:
        yield opened


# ---- the engine ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["raise", "short"])
def test_an_engine_that_breaks_or_miscounts_costs_only_the_sample_that_does_it(
    faulty: Faulty, http: httpx.Client, fault: str
) -> None:
    """Alone it would be the only one concerned; in company the others run again without it."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool, client(faulty) as other:
        for connected in (http, other):  # beforehand, so that both posts fall into one window
            assert connected.get("/health").status_code == 200
        wave = [sample("a"), sample("b"), sample("bad", f"secret-words {fault}")]
        mine = pool.submit(faulty.post, http, *wave, id=f"mine-{fault}")
        neighbour = pool.submit(faulty.post, other, sample("n"), id=f"neighbour-{fault}")
        body, other_body = mine.result().json(), neighbour.result().json()
    assert [o["status"] for o in body["outputs"]] == ["success", "success", "error"]
    bad = body["samples"][2]
    assert bad["code"] == "engine_failed" and bad["retryable"] is True
    assert "secret-words" not in bad["message"] and "secret-words" not in json.dumps(other_body)
    assert other_body["outputs"][0]["status"] == "success"
    assert len(body["artifacts"]) == 2
    assert any({f"mine-{fault}/bad", f"neighbour-{fault}/n"} <= set(call) for call in faulty.calls()), "not in company"
    faulty.works()


# ---- callers -------------------------------------------------------------------------------------------------------


def test_forty_of_fifty_clients_leave_inside_the_window(faulty: Faulty) -> None:
    """The fifty wait or run when the forty leave: only then there is anything of theirs that could hold up others."""
    crowd = forty_of_fifty_leave(faulty, sample("c", steps=10), "left")
    assert [a.json()["outputs"][0]["status"] for a in crowd.stayed] == ["success"] * 10
    assert crowd.queued > 0 and crowd.left["cancelled"] > 0, crowd
    assert set(crowd.left) <= {"cancelled", "succeeded"}, crowd.left  # and nothing of theirs is left behind
    faulty.works()


def test_a_hundred_posts_with_one_x_request_id_get_each_their_own_artifact(faulty: Faulty) -> None:
    def one(i: int) -> bool:
        with client(faulty) as http:
            body = {"samples": [sample("s", f"prompt-number-{i}-")]}
            answer = http.post("/v1/batches", json=body, headers={"X-Request-ID": "the-same"}).json()
            (artifact,) = answer["artifacts"]
            content = http.get(f"/v1/artifacts/{artifact['path']}", headers={"X-Request-ID": "the-same"}).content
            return f"prompt-number-{i}-".encode() in content

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        assert list(pool.map(one, range(100))) == [True] * 100


# ---- memory --------------------------------------------------------------------------------------------------------


def carry_two(faulty: Faulty, size: int) -> float:
    """Two artifacts of `size` bytes are made, hashed and downloaded at once; what the ingress took for it, MB."""
    memory = Memory(faulty.replica("ingress"))
    with client(faulty) as http:
        answer = faulty.post(http, *[sample(name, f"bytes={size}") for name in ("a", "b")]).json()
        assert [a["bytes"] for a in answer["artifacts"]] == [size, size]

        def fetch(path: str) -> int:
            with http.stream("GET", f"/v1/artifacts/{path}") as stream:
                return sum(len(chunk) for chunk in stream.iter_raw())

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            assert list(pool.map(fetch, [a["path"] for a in answer["artifacts"]])) == [size, size]
    return memory.grown_mb


def test_two_artifacts_of_64_mb_pass_through_the_ingress_in_pieces(faulty: Faulty) -> None:
    assert carry_two(faulty, 64 * MB) < 32


def test_two_artifacts_of_400_mb_take_less_than_200_mb(faulty: Faulty) -> None:
    assert carry_two(faulty, 400 * MB) < 200


# ---- the disk ------------------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_new_batches_and_loses_nothing_that_ran(
    faulty: Faulty, http: httpx.Client, small_disk: Path | None
) -> None:
    if small_disk is None:
        pytest.skip("this user may not mount a small filesystem; tests/generator/test_desk.py has the simulated case")
    accepted = faulty.post(http, sample("before", steps=40), id="fills-up", wait=False)
    assert accepted.status_code == 202
    faulty.running(http, "fills-up")
    filler = small_disk / "filler"
    with filler.open("wb") as stream, pytest.raises(OSError, match="No space"):
        while True:
            stream.write(b"x" * MB)
            stream.flush()
    refused = faulty.post(http, sample("during"), id="not-burnt")
    assert refused.status_code == 503 and refused.json()["code"] == "disk_full"
    assert int(refused.headers["retry-after"]) > 0
    assert http.get("/health").status_code == 200
    time.sleep(40 * STEP_S)  # the sample ends while nothing can be written
    filler.unlink()
    view = faulty.ended(http, "fills-up")
    assert states(view)["before"] in ("succeeded", "engine_failed", "output_invalid")
    if view["state"] != "succeeded":  # the engine itself could not write: the same body runs it again
        faulty.post(http, sample("before", steps=40), id="fills-up")
    faulty.true_artifacts(http, "fills-up")
    assert states(faulty.ended(http, "fills-up")) == {"before": "succeeded"}
    assert faulty.post(http, sample("during"), id="not-burnt").json()["outputs"][0]["status"] == "success"
    faulty.works()


# ---- processes -----------------------------------------------------------------------------------------------------


def test_a_killed_model_replica_costs_time_and_readiness_says_so(faulty: Faulty, http: httpx.Client) -> None:
    """Eight samples in two waves; the replica dies in the first. All run again in the next replica."""
    eight = [sample(f"k{i}", steps=30) for i in range(8)]
    assert faulty.post(http, *eight, id="model-killed", wait=False).status_code == 202
    faulty.running(http, "model-killed")
    before = faulty.runs()["canary/canary"]
    dead = faulty.shoot("Cosmos3-Nano")
    seen = [until(lambda: faulty.ready_status() != 200 and faulty.ready_status(), 20)]
    assert seen == [503]
    assert http.get("/health").status_code == 200
    until(lambda: faulty.ready_status() == 200)
    assert faulty.runs()["canary/canary"] > before, "ready before the new replica has computed anything"
    assert faulty.replica("Cosmos3-Nano") != dead
    assert states(faulty.ended(http, "model-killed")) == {f"k{i}": "succeeded" for i in range(8)}
    assert len(faulty.true_artifacts(http, "model-killed")) == 8
    faulty.works()


def test_a_killed_ingress_comes_back_on_its_port_with_its_ledger(faulty: Faulty, http: httpx.Client) -> None:
    """What had ended is there, what ran is `interrupted`, what waited goes on; the same body reruns the rest, and a run
    that the engine still finishes for the dead ingress spoils no file of the new one."""
    batch = [sample(f"i{i}", steps=30) for i in range(12)]
    first = faulty.post(http, sample("done"), id="before-the-kill")
    assert first.status_code == 200
    assert faulty.post(http, *batch, id="ingress-killed", wait=False).status_code == 202
    faulty.running(http, "ingress-killed")
    faulty.shoot("ingress")
    until(lambda: faulty.ready_status() == 200)
    with client(faulty) as again:
        assert again.get("/v1/batches/before-the-kill/response").content == first.content
        found = states(faulty.ended(again, "ingress-killed"))
        assert set(found.values()) == {"interrupted", "succeeded"}, found
        finished = {f"ingress-killed/{name}" for name, state in found.items() if state == "succeeded"}
        before = faulty.runs()
        answer = faulty.post(again, *batch, id="ingress-killed")
        assert [o["status"] for o in answer.json()["outputs"]] == ["success"] * 12
        time.sleep(1.0 + 30 * STEP_S)  # longer than anything that was left over can run
        assert len(faulty.true_artifacts(again, "ingress-killed")) == 12
        assert {key: faulty.runs()[key] for key in finished} == {key: before[key] for key in finished}
    faulty.works()


def test_a_killed_service_keeps_what_ended_and_completes_the_rest_when_asked(
    faulty: Faulty, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same root on the same port: what had ended is there, what ran is reported."""
    batch = [sample(f"w{i}", steps=30) for i in range(12)]
    assert faulty.post(http, *batch, id="service-killed", wait=False).status_code == 202
    until(lambda: "succeeded" in states(http.get("/v1/batches/service-killed").json()).values())
    faulty.running(http, "service-killed")
    before = states(http.get("/v1/batches/service-killed").json())
    kept = {name for name, state in before.items() if state == "succeeded"}
    family, url = descendants(faulty.pid), faulty.url
    assert len(family) > 5
    faulty.kill()
    assert all_gone(family, 15), "helpers end by themselves"
    monkeypatch.setitem(faulty.environ, "NPA_COSMOS3_RAY_PORT", url.rsplit(":", 1)[1])
    faulty.launch()
    seen = readiness_until(faulty, url, 200)
    assert seen[0][0] == 503 and "canary" in seen[0][1] and seen[-1] == (200, set())
    faulty.wait_ready()
    assert faulty.url == url
    with client(faulty) as again:
        after = states(faulty.ended(again, "service-killed"))
        assert {after[name] for name in kept} == {"succeeded"}
        assert "interrupted" in after.values()
        assert set(after.values()) == {"succeeded", "interrupted"}
        runs = faulty.runs()
        answer = faulty.post(again, *batch, id="service-killed")
        assert [o["status"] for o in answer.json()["outputs"]] == ["success"] * 12
        assert len(faulty.true_artifacts(again, "service-killed")) == 12
        ran_again = {key for key in faulty.runs() - runs if key.startswith("service-killed/")}
        assert ran_again == {f"service-killed/{name}" for name, state in after.items() if state == "interrupted"}
    faulty.works()
