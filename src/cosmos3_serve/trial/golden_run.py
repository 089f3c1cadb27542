"""One golden run: a service (running, or started for it), a batch through `ray-batch`, a verdict, and its records.

golden-eval-…/ server-start.json  server-join.json  generator-….log     only where the run started the service
               batch.json  ready.json  system-info.json  publication/   what was asked, who answered, what came
               result.json                                              what is printed
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from cosmos3_serve.blockworld.asked import require_measures
from cosmos3_serve.checks.golden import request
from cosmos3_serve.checks.golden_checklist import checklist
from cosmos3_serve.checks.golden_images import verified_media
from cosmos3_serve.checks.golden_verdict import Seen, require_target, target_of_service, verdict
from cosmos3_serve.client.health import ask_health
from cosmos3_serve.client.load import endpoint_of, token_of
from cosmos3_serve.contract.targets import judge_targets
from cosmos3_serve.errors import ContractViolation, NotReady, ServiceFailure, Unreachable, UsageError
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.storage.location import open_store
from cosmos3_serve.trial.children import Children
from cosmos3_serve.trial.golden_service import GoldenService
from cosmos3_serve.weights.blockworld import BLOCKWORLD

POLL_S = 10.0
ASK_S = 30.0
MAX_JSON = 16 * 1024 * 1024

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class GoldenOrder:
    """What was asked for.

    Attributes:
        settings: of the service to start; None: the one at `endpoint` is used as it is.
        target: `sm_90` and the like that it must run on, empty for whatever is there.
        publish: where the batch is published; empty: in the folder.
        timeout_s: seconds for the start, and again for the batch.
    """

    folder: Path
    settings: GeneratorSettings | None
    endpoint: str
    token_env: str
    target: str
    publish: str
    timeout_s: float


def run_golden(order: GoldenOrder, say: Say) -> dict[str, Any]:
    """Run it and return the result, which is also `result.json` in the folder.

    Raises:
        Refusal: the target is another one (`wrong_target`), or the service refused to start.
        NotReady, Unreachable: a running service did not become ready in time.
        Interrupted: a signal; what was started has ended.
        ServiceFailure: the service broke; a batch that broke is a result, FAIL.
    """
    # What can be refused at once is refused before there is a folder.
    if order.settings is None:
        endpoint, token = endpoint_of(order.endpoint), token_of(order.token_env)
    else:
        _refuse_other_machine(order)
    order.folder.mkdir(parents=True, exist_ok=True)
    if any(order.folder.iterdir()):
        raise UsageError(f"{order.folder} is not empty", remedy="name another --evidence-dir")
    seconds: dict[str, float] = {}
    trouble: list[str] = []
    started = time.monotonic()
    with Children() as children:
        if order.settings is None:
            environ = dict(os.environ)
            say(f"waiting until {endpoint} is ready")
            ready = _wait_running(endpoint, order)
        else:
            service = GoldenService(order.settings, order.folder, timeout_s=order.timeout_s)
            say("starting the service")
            children.start(service.launch, service.stop)
            endpoint = service.wait_ready()["endpoint"]
            environ, token = dict(service.command.environ), service.command.token
            environ[order.token_env] = token
            ready = _get(endpoint, "/ready", token)
        seconds["ready"] = round(time.monotonic() - started, 3)
        system = _get(endpoint, "/system-info", token)
        for name, body in (("ready.json", ready), ("system-info.json", system)):
            _write(order.folder / name, body)
        if order.target:
            require_target(order.target, target_of_service(ready, system))
        if ready.get("weights") == BLOCKWORLD:
            require_measures()
        began = time.monotonic()
        publication = order.publish or str(order.folder / "publication")
        try:
            _submit(order, children, endpoint, environ, ready, publication, say)
        except ServiceFailure as failure:
            trouble.append(f"{failure.detail}; its own words are above")
        seconds["batch"] = round(time.monotonic() - began, 3)
    say("judging what came")
    manifest, media = ({}, []) if trouble else asyncio.run(_read_back(publication))
    wanted = order.settings.guardrails if order.settings else None
    result = verdict(Seen(ready, system, manifest, media, wanted), trouble) | {
        "evidence_dir": str(order.folder),
        "publication": publication,
        "seconds": seconds,
        "service": "started by this run" if order.settings else "already running",
    }
    result["checklist"] = checklist(result, order.target, publication)
    _write(order.folder / "result.json", result)
    return result


def _refuse_other_machine(order: GoldenOrder) -> None:
    """Before anything is started: a target that this machine cannot be."""
    assert order.settings is not None
    if not order.target or order.settings.ray_address:
        return
    from cosmos3_serve.generator.replica.system import accelerators

    devices = [] if order.settings.device == "cpu" else [a["compute_capability"] for a in accelerators()]
    found = [judge_targets("", [device]) for device in devices] or [judge_targets("", [])]
    if order.target not in {verdict.target for verdict in found}:
        require_target(order.target, found[0])


def _wait_running(endpoint: str, order: GoldenOrder) -> dict[str, Any]:
    """The readiness report of a running service, asked every ten seconds (docs/contract.md 8)."""
    deadline = time.monotonic() + order.timeout_s
    while True:
        try:
            return ask_health(endpoint, token_env=order.token_env, timeout=ASK_S).check()
        except (NotReady, Unreachable):
            if time.monotonic() + POLL_S > deadline:
                raise
        time.sleep(POLL_S)


def _get(endpoint: str, path: str, token: str) -> dict[str, Any]:
    try:
        # Loopback is never asked of a proxy.
        local = urlsplit(endpoint).hostname in ("127.0.0.1", "localhost", "::1")
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.get(f"{endpoint}{path}", headers=headers, timeout=ASK_S, trust_env=not local)
        body = answer.json() if answer.status_code == 200 and len(answer.content) <= MAX_JSON else None
    except (httpx.HTTPError, OSError, ValueError) as error:
        raise ServiceFailure(f"GET {path} did not answer ({type(error).__name__})") from None
    if not isinstance(body, dict):
        raise ContractViolation(f"GET {path} answered {answer.status_code} without a JSON object")
    return body


def _submit(
    order: GoldenOrder,
    children: Children,
    endpoint: str,
    environ: Mapping[str, str],
    ready: Mapping[str, Any],
    place: str,
    say: Say,
) -> None:
    """The samples through the client's own command, published to `place`. Raises ServiceFailure."""
    batch = order.folder / "batch.json"
    asked = request(ready.get("weights"))
    _write(batch, asked)
    say(f"{len(asked['samples'])} samples through ray-batch")
    children.run(
        [
            *("ray-batch", "--input-path", str(batch), "--output-path", place, "--endpoint", endpoint),
            *("--expected-revision", str(ready.get("framework_revision", ""))),
            *("--token-env", order.token_env, "--timeout", str(order.timeout_s)),
            *("--journal-dir", str(order.folder / "journal"), "--quiet"),
        ],
        environ,
    )


async def _read_back(publication: str) -> tuple[dict[str, Any], list[Any]]:
    place = open_store(publication)
    with tempfile.TemporaryDirectory(prefix="cosmos3-golden-") as scratch:
        path = Path(scratch) / "provenance.json"
        await place.store.download(place.key("provenance.json"), path, max_bytes=MAX_JSON)
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        return manifest, await verified_media(publication, manifest, Path(scratch), os.environ)


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
