"""The wiring of the framework engine, on real Ray and Serve, over a DOUBLE of upstream: its names, none of its code.

What the double proves is what happens around the engine. That the real one fits is tests/framework/.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from support.framework_service import DoubleGenerator
from support.guardrail_hub import guardrail_repos
from support.hub import stub_hub
from support.service import client
from support.upstream_hub import upstream_repos

from cosmos3_serve.contract.wire import FRAMEWORK_BACKEND, FRAMEWORK_REVISION
from cosmos3_serve.weights.assets import GUARDRAIL1, QWEN_GUARD, WAN_VAE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
LIMIT_S = 6.0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoubleGenerator]:
    folder = tmp_path_factory.mktemp("double")
    knobs = {
        "NPA_COSMOS3_RAY_MAX_BATCH_SIZE": "8",
        "NPA_COSMOS3_RAY_BATCH_WAIT_TIMEOUT_S": "0.3",
        "COSMOS3_DOUBLE_LIMIT_S": str(LIMIT_S),
        "COSMOS3_DRAIN_TIMEOUT_S": "1",
    }
    with stub_hub({**guardrail_repos(), **upstream_repos()}) as hub:
        DoubleGenerator(hub.environ(), folder).prepare(hub)
    # The Hub is gone now: what upstream's worker asks for is on the disk, or the service does not start.
    with DoubleGenerator({**knobs, **hub.environ(), "HF_HUB_OFFLINE": "1"}, folder) as running:
        yield running


@pytest.fixture
def http(service: DoubleGenerator) -> Iterator[httpx.Client]:
    with client(service, timeout=120.0) as opened:
        yield opened


def images(*names: str, told: dict[str, str] | None = None, **fields: Any) -> list[dict[str, Any]]:
    common = {"model_mode": "text2image", "prompt": "a secret plan", "resolution": "256", "seed": 7} | fields
    return [{"name": name, **common, "extra": {"double": (told or {}).get(name, "")}} for name in names]


def post(http: httpx.Client, samples: list[dict[str, Any]]) -> dict[str, Any]:
    answer = http.post("/v1/batches", json={"samples": samples})
    assert answer.status_code == 200, answer.text
    assert "a secret plan" not in str([sample["message"] for sample in answer.json()["samples"]])
    assert "/outputs-" not in answer.text and "Traceback" not in answer.text, "no server path, no stack leaves"
    body: dict[str, Any] = answer.json()
    return body


def state(body: dict[str, Any]) -> dict[str, str]:
    return {sample["name"]: sample["code"] or sample["state"] for sample in body["samples"]}


def seen(service: DoubleGenerator, kind: str, *, of: str) -> list[list[str]]:
    """Events about the samples of one test, which carry its letter."""
    return [names for names in service.events(kind) if all(name.startswith(of) for name in names)]


def until(check: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if check():
            return True
        time.sleep(0.2)
    return False


def test_it_says_which_engine_and_revision_run(http: httpx.Client) -> None:
    ready = http.get("/ready").json()
    assert ready["status"] == "ready"
    assert (ready["backend"], ready["framework_revision"]) == (FRAMEWORK_BACKEND, FRAMEWORK_REVISION)
    assert (ready["target"], ready["target_status"]) == ("cpu", "cpu")  # asked of the worker's machine, not guessed
    assert ready["max_batch_size"] == 8 and ready["model_max_ongoing_requests"] >= 8
    assert (ready["guardrails"], ready["guardrails_effective"], ready["payload_verified"]) == (True, True, True)
    assert [row["repo"] for row in ready["assets"]] == [GUARDRAIL1.repo, QWEN_GUARD.repo, WAN_VAE.repo]
    body = post(http, images("w1"))
    (sample,) = body["samples"]
    assert (sample["guardrails"]["texts_applied"], sample["guardrails"]["outputs_applied"]) == (True, None)
    assert body["engine"] == {"engine": "framework", "revision": FRAMEWORK_REVISION}
    assert body["backend"] == FRAMEWORK_BACKEND and body["weights"] == "random"


def test_upstream_loads_offline_and_no_connection_leaves(service: DoubleGenerator) -> None:
    assert service.events("loaded")[0] == ["vae", "sound", "sound", "guardrail", "classifier", "nltk"]
    assert not service.sockets_path.exists(), service.sockets_path.read_text()


def test_a_full_batch_of_eight_is_one_coalesced_batch_and_one_inference(
    service: DoubleGenerator, http: httpx.Client
) -> None:
    # The first of its shape runs alone, since nobody knows how long it takes; then eight share one batch.
    assert set(state(post(http, images("e0"))).values()) == {"succeeded"}
    body = post(http, images(*(f"f{i}" for i in range(8))))
    assert set(state(body).values()) == {"succeeded"}
    # Upstream's own max_ongoing_requests of 5 would have made 5 and 3 of it.
    assert sorted(map(len, seen(service, "batch", of="f"))) == [8]
    assert sorted(map(len, seen(service, "inference", of="f"))) == [8]
    assert {sample["wave"]["coalesced"] for sample in body["samples"]} == {8}
    assert {sample["wave"]["inference_batch"] for sample in body["samples"]} == {8}


def test_an_unknown_shape_runs_alone(service: DoubleGenerator, http: httpx.Client) -> None:
    body = post(http, images("u0", "u1", "u2", num_steps=11))
    assert set(state(body).values()) == {"succeeded"}
    assert sorted(map(len, seen(service, "batch", of="u"))) == [1, 2]


def test_what_upstream_refuses_to_mix_is_never_in_one_call(service: DoubleGenerator, http: httpx.Client) -> None:
    text = {"model_mode": "reasoner", "prompt": "why?", "seed": 1, "max_new_tokens": 4}
    samples = [*images("m0", "m1"), *images("m2", num_steps=12), {"name": "m3", **text}, {"name": "m4", **text}]
    body = post(http, samples)
    assert set(state(body).values()) == {"succeeded"}
    kinds = {"m0": "i", "m1": "i", "m2": "s", "m3": "r", "m4": "r"}
    calls = seen(service, "inference", of="m")
    assert all(len({kinds[name] for name in names}) == 1 for names in calls)
    assert [o["outputs"][0]["files"] for o in body["outputs"]][3] == [f"{body['request_id']}/m3/reasoner_text.txt"]


def test_one_blocked_sample_costs_its_neighbours_nothing(service: DoubleGenerator, http: httpx.Client) -> None:
    body = post(http, images("b0", "b1", "b2", told={"b1": "blocked"}))
    assert state(body) == {"b0": "succeeded", "b1": "guardrail_blocked", "b2": "succeeded"}
    calls = seen(service, "batch", of="b")
    assert sorted(calls[0]) == ["b0", "b1", "b2"] and sorted(calls[1:]) == [["b0"], ["b1"], ["b2"]]


def test_upstreams_exceptions_have_codes(http: httpx.Client) -> None:
    body = post(http, images("x0", "x1", told={"x0": "raise", "x1": "oom"}))
    assert state(body) == {"x0": "engine_failed", "x1": "out_of_memory"}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"pickle_file": "s3://b/x.pkl"}, "pickle_file"),
        ({"tensors_file": "s3://b/x.safetensors"}, "tensors_file"),
        ({"defaults_file": "s3://b/x.json"}, "defaults_file"),
        ({"vision_path": "/etc/passwd.png"}, "vision_path"),
        ({"vision_path": "https://huggingface.co/x.png"}, "vision_path"),
        ({"vision_path": "s3://elsewhere/x.png"}, "vision_path"),
        ({"prompt_path": "/etc/hostname"}, "prompt_path"),
        ({"output_dir": "/tmp/x"}, "output_dir"),
        ({"num_outputs": 2}, "num_outputs"),
    ],
)
def test_dangerous_fields_never_reach_upstream(
    service: DoubleGenerator, http: httpx.Client, fields: dict[str, Any], field: str
) -> None:
    before = len(service.events("batch"))
    answer = http.post("/v1/batches", json={"samples": [{"name": "d0", "prompt": "p", **fields}]})
    assert answer.status_code in (400, 422)
    assert field in answer.text
    assert len(service.events("batch")) == before


def test_a_dead_worker_is_replaced_and_the_sample_still_succeeds(service: DoubleGenerator, http: httpx.Client) -> None:
    body = post(http, images("k0", told={"k0": "exit"}))
    assert state(body) == {"k0": "succeeded"}
    assert until(lambda: http.get("/ready").status_code == 200)
    assert "engine_replaced" in service.log_path.read_text()


def test_a_wedged_worker_turns_ready_to_503_and_is_replaced(service: DoubleGenerator, http: httpx.Client) -> None:
    before = pids(service)
    accepted = http.post(
        "/v1/batches", json={"samples": images("h0", told={"h0": "hang"})}, headers={"Prefer": "respond-async"}
    )
    assert accepted.status_code == 202
    assert until(lambda: http.get("/ready").status_code == 503), "the wedged worker was never noticed"
    place = accepted.headers["location"]
    assert until(lambda: http.get(place).json()["state"] not in ("queued", "running"))
    (sample,) = http.get(place).json()["samples"]
    assert sample["code"] == "deadline_exceeded" and sample["retryable"]
    assert until(lambda: http.get("/ready").status_code == 200), "no new replica came"
    assert set(state(post(http, images("h1"))).values()) == {"succeeded"}
    assert pids(service)[-1] not in before


def test_a_worker_that_dies_while_nobody_asks_is_noticed(service: DoubleGenerator, http: httpx.Client) -> None:
    assert until(lambda: http.get("/ready").status_code == 200)
    post(http, images("q0"))
    os.kill(pids(service)[-1], signal.SIGKILL)
    assert until(lambda: http.get("/ready").status_code == 503, 40.0)
    assert until(lambda: http.get("/ready").status_code == 200)
    assert set(state(post(http, images("q1"))).values()) == {"succeeded"}


def pids(service: DoubleGenerator) -> list[int]:
    """Process ids of upstream's worker, of each event in turn."""
    return service.worker_pids()
