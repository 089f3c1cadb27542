"""The generator as the rendered RayService declares it, on a real Ray cluster here: built, ready, drained."""

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml
from support import declared
from support.manifests import KUBERAY_SET
from support.service import images, shared_cache

from cosmos3_serve.deploy.render import render

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
CPU = ("settings.guardrails=off", "settings.device=cpu", "settings.checkpoint=tiny", "worker.gpus=0")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("declared")
    files = render("kuberay", service="generator", sets=(*KUBERAY_SET, *CPU), parts=["deploy"])
    (service,) = [d for f in files for d in f.documents if d["kind"] == "RayService"]
    config: dict[str, Any] = yaml.safe_load(service["spec"]["serveConfigV2"])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for app in config["applications"]:  # what a pod's mounts and network are elsewhere
        app["args"] |= {"host": "127.0.0.1", "port": port, "output_path": str(folder / "outputs")}
    (folder / "config.json").write_text(json.dumps(config))
    token = secrets.token_urlsafe(24)
    environ = {
        **os.environ,
        "HOME": str(folder),
        "NPA_COSMOS3_RAY_TOKEN": token,
        "COSMOS3_CACHE_DIR": str(shared_cache(tmp_path_factory)),
    }
    command = [sys.executable, declared.__file__, str(folder / "config.json")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdin is not None and process.stdout is not None
    try:
        reach = json.loads(process.stdout.readline())
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=120.0) as http:
            until = time.monotonic() + 400
            while not _ready(http):
                assert process.poll() is None and time.monotonic() < until, (folder / "log").read_text()[-3000:]
                time.sleep(1.0)
            yield http, {**environ, **reach}
    finally:
        process.stdin.close()
        process.wait(120)


def _ready(http: httpx.Client) -> bool:
    try:
        return http.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


def test_a_batch_runs_and_the_hook_lets_a_running_one_end(running: tuple[httpx.Client, dict[str, str]]) -> None:
    http, environ = running
    assert httpx.get(f"{http.base_url}/ready").status_code == 401
    answer = http.post("/v1/batches", json={"samples": images("a", "b")})
    assert answer.status_code == 200, answer.text
    assert [sample["state"] for sample in answer.json()["samples"]] == ["succeeded", "succeeded"]

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
