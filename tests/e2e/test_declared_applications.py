"""The generator as the rendered RayService declares it, guardrails on, on a real Ray cluster here.

Built, ready, checked, drained.

The environment is the rendered pods' own, with a folder of the test in place of the mounted model cache. Doubles: the
Hub, the guardrail packages and their deciders.
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import httpx
import pytest
import yaml
from support import declared, declared_guarded
from support.guard import BLOCK
from support.guardrail_hub import REVISION_1_0, guardrail_repos
from support.hub import StubHub, stub_hub
from support.manifests import KUBERAY_SET
from support.service import images, shared_cache

from cosmos3_serve.deploy.render import render

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
CPU = ("settings.device=cpu", "settings.checkpoint=tiny", "worker.gpus=0")
REVISION = f"settings.guardrail_revision={REVISION_1_0}"
PRODUCT = "cosmos3_serve.generator.application"


@pytest.fixture(scope="module")
def hub() -> Iterator[StubHub]:
    with stub_hub(guardrail_repos()) as stub:
        yield stub


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, hub: StubHub) -> Iterator[tuple[httpx.Client, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("declared")
    files = render("kuberay", service="generator", sets=(*KUBERAY_SET, *CPU, REVISION), parts=["deploy"])
    (service,) = [d for f in files for d in f.documents if d["kind"] == "RayService"]
    config: dict[str, Any] = yaml.safe_load(service["spec"]["serveConfigV2"])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for app in config["applications"]:  # what a pod's mounts and network are elsewhere
        app["args"] |= {"host": "127.0.0.1", "port": port, "output_path": str(folder / "outputs")}
        assert app["import_path"].startswith(f"{PRODUCT}:build")
        app["import_path"] = app["import_path"].replace(PRODUCT, declared_guarded.__name__)
    (folder / "config.json").write_text(json.dumps(config))
    token = secrets.token_urlsafe(24)
    tests = Path(__file__).parents[1]
    path = [str(tests), str(tests / "support" / "packages"), os.environ.get("PYTHONPATH", "")]
    environ = {
        **os.environ,
        **_pod_environ(service, folder / "model-cache"),
        **hub.environ(),
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "HOME": str(folder),
        "NPA_COSMOS3_RAY_TOKEN": token,
        "RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": 4}),  # a worker pod's: each deployment asks for one
        "COSMOS3_CACHE_DIR": str(shared_cache(tmp_path_factory)),
    }
    command = [sys.executable, declared.__file__, str(folder / "config.json")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdin is not None and process.stdout is not None
    try:
        reach = _said(process.stdout)
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=120.0) as http:
            until = time.monotonic() + 400
            while not _ready(http):
                assert process.poll() is None and time.monotonic() < until, (folder / "log").read_text()[-3000:]
                process.stdin.write("status\n")
                process.stdin.flush()
                applications = _said(process.stdout)
                assert not any(status == "DEPLOY_FAILED" for status, _ in applications.values()), applications
                time.sleep(1.0)
            yield http, {**environ, **reach}
    finally:
        process.stdin.close()
        process.wait(120)


def _pod_environ(service: dict[str, Any], cache: Path) -> dict[str, str]:
    """The variables of the rendered head, where the builders run, with `cache` in place of the mount."""
    pod = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    found = {e["name"]: e["value"] for e in pod["env"] if "value" in e}
    mount = found["NPA_MODEL_CACHE_DIR"]
    inside = {name: value.replace(mount, str(cache)) for name, value in found.items() if value.startswith(mount)}
    assert inside["NLTK_DATA"] == str(cache / "nltk")
    return inside


def _said(lines: IO[str]) -> dict[str, Any]:
    """The next of its own lines; Ray writes others between them."""
    for line in lines:
        if line.startswith("{"):
            said: dict[str, Any] = json.loads(line)
            return said
    raise AssertionError("the cluster's process has ended")


def _ready(http: httpx.Client) -> bool:
    try:
        return http.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


def test_a_batch_runs_and_the_hook_lets_a_running_one_end(running: tuple[httpx.Client, dict[str, str]]) -> None:
    http, environ = running
    assert httpx.get(f"{http.base_url}/ready").status_code == 401
    report = http.get("/ready").json()
    assert (report["guardrails"], report["guardrails_effective"]) == (True, True)
    answer = http.post("/v1/batches", json={"samples": [*images("a"), *images("b", prompt=f"a ball {BLOCK}")]})
    assert answer.status_code == 200, answer.text
    passed, blocked = answer.json()["samples"]
    assert (passed["state"], blocked["code"]) == ("succeeded", "guardrail_blocked")
    checks = {row["check"]: row["decision"] for row in passed["guardrails"]["checks"]}
    assert checks["prompt.blocklist"] == checks["prompt.qwen3guard"] == "passed"
    assert checks["media.face_blur"] == "altered"

    # The preStop hook of the rendered pods, in the middle of a generation.
    answers: list[httpx.Response] = []
    long = {"samples": images("last", num_frames=25, num_steps=30)}
    waiting = threading.Thread(target=lambda: answers.append(http.post("/v1/batches", json=long)))
    waiting.start()
    while not any(batch["state"] == "running" for batch in http.get("/v1/batches").json()["batches"]):
        assert waiting.is_alive(), answers
        time.sleep(0.02)
    command = [sys.executable, "-m", "cosmos3_serve.generator.leave", "--timeout", "85"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    waiting.join(10)
    assert (done.returncode, done.stderr.strip().splitlines()[-1]) == (0, "drained"), done.stderr
    assert answers and answers[0].status_code == 200
    assert [sample["state"] for sample in answers[0].json()["samples"]] == ["succeeded"]
    with pytest.raises(httpx.TransportError):
        http.get("/ready")
