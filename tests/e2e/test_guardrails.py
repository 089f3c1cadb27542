"""Guardrails on, in a real service: real Ray, real engine (random weights), a stub Hub, doubles of what is gated."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from support.guard import BLOCK, RAISE
from support.guarded_service import BROKEN_ENV, MODEL_DEPLOYED, GuardedGenerator
from support.guardrail_hub import REVISION_1_0, guardrail_repos
from support.hub import OTHER_TOKEN, StubHub, stub_hub
from support.ports import MAY_BE_GONE, check_grpc, documented, listeners, place, ray_token, seen_by
from support.service import Figures, client, shared_cache

from cosmos3_serve.errors import ServiceFailure
from cosmos3_serve.weights.assets import GUARDRAIL_1_0

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def hub() -> Iterator[StubHub]:
    with stub_hub(guardrail_repos()) as stub:
        yield stub


def service(hub: StubHub, tmp_path_factory: pytest.TempPathFactory, **environ: str) -> GuardedGenerator:
    home = tmp_path_factory.mktemp("hub-cache")
    settings = {"COSMOS3_GUARDRAIL_REVISION": REVISION_1_0, "HF_HOME": str(home), **hub.environ(), **environ}
    return GuardedGenerator(settings, shared_cache(tmp_path_factory))


@pytest.fixture(scope="module")
def guarded(hub: StubHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedGenerator]:
    with service(hub, tmp_path_factory) as running:
        yield running


def batch(*prompts: str, **fields: Any) -> dict[str, Any]:
    return {
        "samples": [
            {"name": f"s{i}", "prompt": prompt, "num_frames": 1, "seed": 7, **fields}
            for i, prompt in enumerate(prompts)
        ]
    }


def test_ready_says_configured_and_effective(guarded: GuardedGenerator) -> None:
    with client(guarded) as http:
        report = http.get("/ready").json()
    assert (report["guardrails"], report["guardrails_effective"]) == (True, True)
    (check,) = [check for check in report["checks"] if check["name"] == "guardrails"]
    assert check["ok"] and "words, model" in check["reason"]
    assert MODEL_DEPLOYED in guarded.log_path.read_text(errors="replace")


def test_what_may_not_pass_is_ended_and_its_neighbours_are_not(guarded: GuardedGenerator) -> None:
    body = batch("a cat", f"a secret {BLOCK}", f"a secret {RAISE}", "a dog")
    with client(guarded) as http:
        before = Figures.of(http)
        response = http.post("/v1/batches", json=body)
        after = Figures.of(http)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["guardrails"] is True
    samples = answer["samples"]
    assert [s["code"] for s in samples] == [None, "guardrail_blocked", "guardrail_failed", None]
    assert [o["status"] for o in answer["outputs"]] == ["success", "error", "error", "success"]
    assert {a["sample"] for a in answer["artifacts"]} == {"s0", "s3"}
    rows = {row["check"]: row for row in samples[0]["guardrails"]["checks"]}
    assert {name: row["decision"] for name, row in rows.items()} == {
        "prompt.words": "passed", "prompt.model": "passed",
        "media.face_blur": "altered", "media.content_safety": "not_run",
    }  # fmt: skip
    assert rows["media.face_blur"]["revision"] == REVISION_1_0
    assert GUARDRAIL_1_0.repo in rows["media.face_blur"]["checker"]
    assert (samples[0]["guardrails"]["configured"], samples[0]["guardrails"]["applied"]) == (True, True)
    assert samples[1]["guardrails"]["checks"][0]["decision"] == "blocked"
    assert samples[2]["guardrails"]["checks"][0]["decision"] == "failed"
    counted = {name: after.since(before, name) for name in after.values if name.startswith("guardrail_decisions_total")}
    assert counted['guardrail_decisions_total{check="prompt.words",decision="blocked"}'] == 1
    assert counted['guardrail_decisions_total{check="prompt.words",decision="failed"}'] == 1
    assert counted['guardrail_decisions_total{check="media.face_blur",decision="altered"}'] == 2
    assert "secret" not in json.dumps(samples)


def test_what_the_filter_made_is_what_is_delivered(guarded: GuardedGenerator) -> None:
    import io

    from PIL import Image

    with client(guarded) as http:
        answer = http.post("/v1/batches", json=batch("a cat")).json()
        picture = http.get(f"/v1/artifacts/{answer['artifacts'][0]['path']}").content
    assert Image.open(io.BytesIO(picture)).convert("L").getextrema()[1] < 8  # the double darkens every frame


def test_a_negative_prompt_is_checked(guarded: GuardedGenerator) -> None:
    with client(guarded) as http:
        answer = http.post("/v1/batches", json=batch("a cat", negative_prompt=BLOCK)).json()
    assert answer["samples"][0]["code"] == "guardrail_blocked"
    assert "negative_prompt" in answer["samples"][0]["message"]


def test_no_connection_leaves_the_machine(guarded: GuardedGenerator) -> None:
    """In no process of the service, loading and after the generations above; the stub Hub is on this machine."""
    assert not guarded.sockets_path.exists(), guarded.sockets_path.read_text()


def test_no_prompt_in_the_log(guarded: GuardedGenerator) -> None:
    with client(guarded) as http:
        assert http.post("/v1/batches", json=batch(f"a very secret {RAISE}")).status_code == 200
    assert "very secret" not in guarded.log_path.read_text(errors="replace")


def refused(running: GuardedGenerator) -> tuple[int | None, dict[str, Any], str]:
    with pytest.raises(ServiceFailure):
        running.launch().wait_ready()
    log = running.log_path.read_text(errors="replace")
    problem = [json.loads(line) for line in log.splitlines() if line.startswith('{"type"')]
    return running.exit_code, problem[-1], log


@pytest.mark.parametrize(
    ("environ", "code"),
    [
        ({"HF_TOKEN": ""}, "access_token_missing"),
        ({"HF_TOKEN": OTHER_TOKEN}, "access_denied"),
        ({"HF_HUB_OFFLINE": "1"}, "guardrail_cache_empty"),
        ({"COSMOS3_GUARDRAIL_REVISION": ""}, "guardrail_revision_missing"),
        ({"NPA_MODEL_CACHE_DIR": "s3://bucket/cache"}, "model_cache_bucket"),
    ],
)
def test_a_start_that_is_refused_starts_no_ray(
    hub: StubHub, tmp_path_factory: pytest.TempPathFactory, environ: dict[str, str], code: str
) -> None:
    exit_code, problem, _ = refused(service(hub, tmp_path_factory, **environ))
    assert (exit_code, problem["code"]) == (3, code)
    assert problem["remedy"] and problem["ray_imported"] is False


def test_checkers_that_do_not_load_refuse_the_start_before_a_model_is_deployed(
    hub: StubHub, tmp_path_factory: pytest.TempPathFactory
) -> None:
    exit_code, problem, log = refused(service(hub, tmp_path_factory, **{BROKEN_ENV: "1"}))
    assert (exit_code, problem["code"]) == (3, "guardrail_selftest")
    assert "told not to load" in problem["detail"] and "--no-guardrails" in problem["remedy"]
    assert MODEL_DEPLOYED not in log


def test_the_model_cache_is_exported_to_every_process(
    hub: StubHub, tmp_path_factory: pytest.TempPathFactory, guarded: GuardedGenerator
) -> None:
    """NLTK_DATA begins with the tokenizer data in the service and in each of Serve's replicas."""
    import psutil

    tree = [psutil.Process(guarded.pid), *psutil.Process(guarded.pid).children(recursive=True)]
    workers = [p for p in tree if "ServeReplica" in p.name() or "ServeReplica" in " ".join(p.cmdline())]
    assert len(workers) == 3  # text guard, model, ingress
    for process in workers:
        assert f"npa-guardrail-nltk-data/{REVISION_1_0}" in process.environ()["NLTK_DATA"].split(":")[0]


def test_every_socket_is_in_the_handbook_and_the_text_guard_asks_for_rays_token(guarded: GuardedGenerator) -> None:
    found = listeners(guarded.pid)
    seen = seen_by(found, guarded.url)
    table = Counter(map(place, documented("operations.md", "Listening ports")))
    assert set(table) - set(seen) <= {MAY_BE_GONE}
    assert seen - table == Counter()
    guard = [listener for listener in found if listener.role == "text guard replica"]
    assert {listener.address for listener in guard} == {"all", "loopback"}
    for listener in guard:
        check_grpc(listener, ray_token(guarded.pid))


def test_a_text_guard_that_dies_fails_closed_and_comes_back(guarded: GuardedGenerator) -> None:
    import psutil

    tree = psutil.Process(guarded.pid).children(recursive=True)
    (guard,) = [p for p in tree if "cosmos3_guardrails" in " ".join([p.name(), *p.cmdline()])]
    with client(guarded, timeout=180.0) as http:
        guard.kill()
        during = http.post("/v1/batches", json=batch("a cat")).json()["samples"][0]
        assert during["code"] in (None, "guardrail_failed")
        if during["code"] is None:  # Serve was quicker with a new replica: then it was checked
            assert during["guardrails"]["applied"] is True
        for _ in range(60):
            after = http.post("/v1/batches", json=batch("a cat")).json()["samples"][0]
            if after["code"] is None:
                break
        assert after["code"] is None and after["guardrails"]["checks"][0]["decision"] == "passed"


def test_the_path_of_the_double_is_the_tests_own() -> None:
    import importlib.util

    assert importlib.util.find_spec("cosmos_guardrail") is None, "the double leaked into this process"
