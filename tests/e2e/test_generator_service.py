"""The generator as it is deployed: real Ray, real Serve, the tiny checkpoint with random weights."""

import concurrent.futures
import io
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from support.crowd import forty_of_fifty_leave
from support.lateness import Lateness
from support.processes import all_gone
from support.service import Figures, client, images, readiness_until, shared_cache

from cosmos3_serve.generator.local import LocalGenerator
from cosmos3_serve.service import reaper

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.fixture
def http(generator: LocalGenerator) -> Any:
    with client(generator) as opened:
        yield opened


def post(http: httpx.Client, samples: list[dict[str, Any]], **headers: str) -> httpx.Response:
    return http.post("/v1/batches", json={"samples": samples, "model": "Cosmos3-Nano"}, headers=headers)


# ---- batching ------------------------------------------------------------------------------------------------------


def test_four_samples_are_one_coalesced_batch_and_one_inference_batch(http: httpx.Client) -> None:
    before = Figures.of(http)
    answer = post(http, images("a", "b", "c", "d"))
    after = Figures.of(http)
    assert answer.status_code == 200
    assert after.sizes(before, "coalesced_batch_size") == {4: 1}
    assert after.sizes(before, "inference_batch_size") == {4: 1}
    assert after.since(before, 'samples_total{state="succeeded"}') == 4
    assert after.since(before, 'phase_seconds_count{phase="inference"}') == 4
    body = answer.json()
    assert [o["status"] for o in body["outputs"]] == ["success"] * 4
    assert {s["wave"]["inference_batch"] for s in body["samples"]} == {4}
    for artifact in body["artifacts"]:
        content = http.get(f"/v1/artifacts/{artifact['path']}").content
        assert len(content) == artifact["bytes"]
        with Image.open(io.BytesIO(content)) as image:
            image.load()
            assert image.size == (256, 256)
    one = http.get(f"/v1/artifacts/{body['artifacts'][0]['path']}", headers={"Range": "bytes=-2"})
    assert one.status_code == 206 and one.content == b"\xff\xd9"


def test_a_burst_of_thirty_two_clients_makes_at_most_nine_batches(
    generator: LocalGenerator, http: httpx.Client
) -> None:
    # Connected beforehand and released together: 32 clients that are still being made are no burst. A wave of four
    # steps takes longer than four requests take to arrive, so that only the first wave may be short.
    clients = [client(generator) for _ in range(32)]
    for own in clients:
        assert own.get("/health").status_code == 200
    before = Figures.of(http)
    ready = threading.Barrier(32)

    def one(i: int) -> int:
        ready.wait(timeout=60)
        return post(clients[i], images(f"burst-{i}", num_steps=4)).status_code

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        assert list(pool.map(one, range(32))) == [200] * 32
    for own in clients:
        own.close()
    after = Figures.of(http)
    assert after.since(before, "coalesced_batch_size_sum") == 32
    assert after.since(before, "coalesced_batch_size_count") <= 9
    assert max(after.sizes(before, "inference_batch_size")) == 4


def test_what_may_not_share_is_not_mixed(http: httpx.Client) -> None:
    before = Figures.of(http)
    samples = [*images("i1", "i2"), *images("v1", num_frames=5, num_steps=2)]
    answer = post(http, samples)
    assert [o["status"] for o in answer.json()["outputs"]] == ["success"] * 3
    after = Figures.of(http)
    assert after.since(before, "inference_batch_size_sum") == 3
    assert after.since(before, "inference_batch_size_count") == 2


def test_fifty_clients_of_whom_most_leave_do_not_block_the_fifty_first(
    generator: LocalGenerator, http: httpx.Client
) -> None:
    crowd = forty_of_fifty_leave(generator, images("c", num_steps=4)[0], "leaver")
    assert [a.json()["outputs"][0]["status"] for a in crowd.stayed] == ["success"] * 10
    assert crowd.queued > 0 and crowd.left["cancelled"] > 0, crowd
    assert set(crowd.left) <= {"cancelled", "succeeded"}, crowd.left
    answer = post(http, images("after-all"))
    assert answer.status_code == 200 and answer.json()["outputs"][0]["status"] == "success"


def test_an_id_is_one_body_for_ever(http: httpx.Client) -> None:
    def ask(prompt: str) -> httpx.Response:
        return http.post("/v1/batches", json={"samples": images("a", prompt=prompt), "request_id": "one-body"})

    first, other, again = ask("a red ball"), ask("a blue ball"), ask("a red ball")
    assert first.status_code == 200
    assert (other.status_code, other.json()["code"]) == (409, "request_id_conflict")
    assert other.headers["content-type"] == "application/problem+json" and "request_id" in other.json()["detail"]
    assert again.status_code == 200 and again.content == first.content


# ---- liveness under load -------------------------------------------------------------------------------------------


def test_health_answers_at_once_while_a_batch_runs(generator: LocalGenerator, http: httpx.Client) -> None:
    accepted = post(http, images("long", num_frames=25, num_steps=12), Prefer="respond-async")
    assert accepted.status_code == 202
    place = accepted.headers["location"]
    took: list[float] = []
    with Lateness() as machine:
        began = time.perf_counter()
        while http.get(place).json()["state"] in ("queued", "running"):
            started = time.perf_counter()
            assert http.get("/health").status_code == 200
            took.append(time.perf_counter() - started)
        lasted = time.perf_counter() - began
    # The baseline takes as long as the batch. Ours took 67 ms at most in the benchmark; what a busy machine adds to
    # everybody's waiting is measured here and taken off. A loop that blocks does so again and again, a machine's hiccup
    # comes once or twice.
    took.sort()
    assert len(took) > 20 and took[len(took) * 9 // 10] - machine.worst_s < 0.2, (took, machine.worst_s)
    assert took[-1] - machine.worst_s < lasted / 4, (took[-3:], lasted, machine.worst_s)
    assert http.get("/ready").status_code == 200


def test_events_of_an_asynchronous_batch_show_steps_and_end(generator: LocalGenerator, http: httpx.Client) -> None:
    place = post(http, images("steps", num_frames=25, num_steps=12), Prefer="respond-async").headers["location"]
    kinds: list[str] = []
    with http.stream("GET", f"{place}/events") as stream:
        for line in stream.iter_lines():
            if line.startswith("event: "):
                kinds.append(line[7:])
    assert kinds[-1] == "end" and "sample" in kinds and "progress" in kinds
    assert http.get(f"{place}/response").json()["outputs"][0]["status"] == "success"


def test_a_running_sample_stops_when_it_is_cancelled(http: httpx.Client) -> None:
    place = post(http, images("gone", num_frames=25, num_steps=200), Prefer="respond-async").headers["location"]
    while http.get(place).json()["samples"][0].get("step") is None:
        time.sleep(0.05)
    assert http.delete(place).status_code == 200
    deadline = time.monotonic() + 30
    while (view := http.get(place).json())["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert view["state"] == "cancelled" and view["samples"][0]["code"] == "cancelled"
    assert http.get(f"{place}/response").json()["outputs"][0]["status"] == "skip"


# ---- who may ask, and how much -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
def test_no_path_of_any_kind_answers_without_the_token(generator: LocalGenerator, method: str) -> None:
    paths = ("/", "/health", "/ready", "/models", "/system-info", "/metrics", "/v1/batches", "/v1/batches/x/events",
             "/v1/artifacts/x/y/z.jpg", "/docs", "/redoc", "/openapi.json", "/-/healthz", "/-/routes", "/nope", "/%00",
             "//health", "/health/../-/routes")  # fmt: skip
    with httpx.Client(base_url=generator.url) as stranger:
        for path in paths:
            for headers in ({}, {"Authorization": "Bearer wrong-token"}, {"Authorization": "Basic Og=="}):
                answer = stranger.request(method, path, headers=headers)
                assert answer.status_code == 401, (method, path, headers)
                assert answer.headers["www-authenticate"] == "Bearer"
                assert method == "HEAD" or answer.json()["detail"] == "invalid bearer token"


def test_raw_requests_that_no_library_sends(generator: LocalGenerator) -> None:
    host, port = generator.url.removeprefix("http://").split(":")

    def ask(data: bytes, then: bytes = b"") -> bytes:
        with socket.create_connection((host, int(port)), timeout=20) as peer:
            peer.sendall(data)
            answer = peer.recv(65536)
            if then:
                peer.sendall(then)
            return answer.split(b"\r\n")[0]

    start = b"POST /v1/batches HTTP/1.1\r\nHost: x\r\n"
    auth = f"Authorization: Bearer {generator.token}\r\n".encode()
    assert b"401" in ask(start + "Authorization: Bearer schlüssel\r\n\r\n".encode())
    assert b"401" in ask(start + b"Content-Length: 999999999\r\n\r\n")  # nothing of the body was sent
    assert b"413" in ask(start + auth + b"Content-Length: 999999999\r\n\r\n")
    big = b"30d40\r\n" + b" " * 200_000 + b"\r\n" + b"30d40\r\n" + b" " * 200_000 + b"\r\n"
    assert b"413" in ask(start + auth + b"Transfer-Encoding: chunked\r\n\r\n" + big)
    assert b"400" in ask(b"NONSENSE\r\n\r\n")
    with httpx.Client(base_url=generator.url, headers={"Authorization": f"bearer {generator.token}"}) as lower:
        assert lower.get("/health").status_code == 200


# ---- crash and shutdown --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_wedged_replica_is_replaced_and_readiness_says_so(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    env = {"NPA_COSMOS3_RAY_OUTPUT_DIR": str(tmp_path / "outputs"), "COSMOS3_STALL_TIMEOUT_S": "3"}
    with LocalGenerator(env, shared_cache(tmp_path_factory)) as service, client(service) as http:
        place = post(http, images("stuck", num_frames=25, num_steps=100), Prefer="respond-async").headers["location"]
        while http.get(place).json()["samples"][0].get("step") is None:
            time.sleep(0.05)
        wedged = replica_pid(service, "Cosmos3-Nano")
        started = reaper.start_time(wedged)
        os.kill(wedged, signal.SIGSTOP)
        readiness_until(service, service.url, 503)
        assert readiness_until(service, service.url, 200)[-1] == (200, set())
        until = time.monotonic() + 60  # Serve may still be ending it while the next one serves
        while reaper.start_time(wedged) == started and time.monotonic() < until:
            time.sleep(0.1)
        assert reaper.start_time(wedged) != started
        assert http.get(place).json()["samples"][0]["code"] == "engine_stalled"
        assert "engine_replacements_total 1.0" in http.get("/metrics").text
        assert post(http, images("after")).json()["outputs"][0]["status"] == "success"


def descendants(service: LocalGenerator) -> list[reaper.Process]:
    return reaper.descendants(service.pid)


def test_a_drain_lets_the_running_sample_end_and_leaves_nothing(generator: LocalGenerator) -> None:
    """The shared service, which ends here. `tests/faults` kills services and replicas, over a cheaper engine."""
    own = generator
    with client(own) as http:
        # SIGTERM: the running sample ends and its caller gets it, nothing new is taken, every process goes.
        answers: list[httpx.Response] = []
        waiting = threading.Thread(
            target=lambda: answers.append(post(http, images("last", num_frames=25, num_steps=20)))
        )
        waiting.start()
        while not any(b["state"] == "running" for b in http.get("/v1/batches").json()["batches"]):
            time.sleep(0.02)
        family = descendants(own)
        own.terminate()
        refused = refusal_while_draining(own)
        waiting.join(60)
    assert own.wait() == 0
    assert answers[0].status_code == 200 and answers[0].json()["outputs"][0]["status"] == "success"
    assert refused.status_code == 503 and refused.json()["code"] == "draining"
    assert all_gone(family, 1)
    for line in own.log_path.read_text().splitlines():
        if line.startswith("{"):
            assert "a red ball" not in line and own.token not in line
            json.loads(line)


def refusal_while_draining(own: LocalGenerator) -> httpx.Response:
    """What a new batch is told once /ready has said 503: from then on nothing is taken, and the port is still open."""
    deadline = time.monotonic() + 20
    with client(own) as other:
        while other.get("/ready").status_code == 200:
            assert time.monotonic() < deadline, "/ready never said that the service drains"
            time.sleep(0.05)
        return post(other, images("late", num_steps=1), Prefer="respond-async")


def replica_pid(service: LocalGenerator, deployment: str) -> int:
    for pid, _ in descendants(service):
        title = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        if title.startswith("ray::ServeReplica") and deployment in title:
            return pid
    raise AssertionError("no such replica")
