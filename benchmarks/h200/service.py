"""The reasoner without Ray: our gateway and our supervised vLLM engines in one process, one engine a GPU.

    python service.py JOB.json STATE.json

Everything a question passes is the product's: front, media gate and its processes, session routing, the engine's
arguments and its supervision. Only the fleet's registry lives in this process instead of a Ray actor. It runs until
its standard input ends. STATE.json tells the URL, the token, and how engines are asked for their metrics.

JOB: model (folder), python (command of the engine's interpreter), gpus (numbers; empty: CPU), extra, env, cache, root,
routing, and for the dry run `double`: the engine is `double_engine.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from cosmos3_serve.reasoner.engine.args import engine_plan
from cosmos3_serve.reasoner.engine.hardware import detect
from cosmos3_serve.reasoner.engine.model_shape import read_shape
from cosmos3_serve.reasoner.engine.reporter import Reporter
from cosmos3_serve.reasoner.engine.vllm_process import MODULE, VllmProcess
from cosmos3_serve.reasoner.fleet.core import FleetCore, InProcessFleet
from cosmos3_serve.reasoner.fleet.member import Service
from cosmos3_serve.reasoner.fleet.view import FleetPort
from cosmos3_serve.reasoner.gateway.app import build_app
from cosmos3_serve.reasoner.gateway.assemble import add_checks, assemble
from cosmos3_serve.reasoner.gateway.upkeep import Upkeep
from cosmos3_serve.reasoner.sessions.policy import AffinityRules, Mode
from cosmos3_serve.reasoner.setup import MODEL_NAME, SECRET_HEADER, ReasonerSetup, ServedModel
from cosmos3_serve.service import logs, memory
from cosmos3_serve.service.http_server import HttpServer
from cosmos3_serve.service.tokens import TokenBook
from cosmos3_serve.settings import ReasonerSettings

START_S = 420.0
CANARY_S = 90.0
VLLM = (0, 25, 0)
WAITS = "no replica has answered the canary's text and video yet"


async def serve(job: dict[str, Any], state: Path) -> None:
    root = Path(job["root"])
    root.mkdir(parents=True, exist_ok=True)
    gpus: list[int] = job["gpus"]
    workers = max(1, len(gpus))
    settings = ReasonerSettings(
        store_dir=root / "store", workers=workers, log_level="warning", routing=job["routing"], vllm_args=()
    )
    logs.configure(settings.log_level)
    memory.keep_freed_memory()
    model, secret = Path(job["model"]), secrets.token_urlsafe(32)
    plan = engine_plan(read_shape(model), settings, detect(), VLLM)
    command = [*job["python"], "-m", MODULE, "--model", str(model), "--served-model-name", MODEL_NAME]
    if job.get("double"):
        command = [*job["python"], str(Path(__file__).with_name("double_engine.py"))]
    began = time.time()
    engines = []
    for gpu in gpus or [None]:
        environ = dict(os.environ) if gpu is None else {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
        engines.append(
            VllmProcess(
                command, [*plan.argv, *job["extra"]], {**plan.env, **job["env"]}, secret,
                cache_dir=Path(job["cache"]), environ=environ,
            )
        )  # fmt: skip
    try:
        await asyncio.gather(*(engine.start(START_S) for engine in engines))
    except Exception as error:
        words = [line[:400] for engine in engines for line in engine.last_words]
        _write(state, {"failed": f"{type(error).__name__}: {error}", "words": words})
        raise SystemExit(1) from error
    ready_s = time.time() - began
    core = FleetCore(AffinityRules(ttl_s=settings.session_ttl_s, mode=Mode(settings.session_mode)), workers)
    fleet = InProcessFleet(core)
    token = secrets.token_urlsafe(16)
    tokens = root / "tokens"
    tokens.write_text(f"bench:{token}\n")
    served = ServedModel(str(model), "random", "random", "random", model, plan.max_model_len)
    port = FleetPort(fleet, secret)
    front = assemble(ReasonerSetup(settings, served, 0, secret), port, "gateway-0", TokenBook(None, tokens))
    upkeep = Upkeep(front)
    add_checks(front, upkeep.canary)
    await front.upstream.start()
    await front.gate.start()
    server = HttpServer(build_app(front), "127.0.0.1", 0)
    await server.start()
    upkeep.start()
    await port.start()
    reporters = []
    for engine in engines:
        service = Service(engine.url, plan.max_num_seqs, plan.held, pid=os.getpid(), engine=plan.facts)
        reporters.append(Reporter(fleet, service, engine.load))
        reporters[-1].start()
    with suppress(TimeoutError):
        async with asyncio.timeout(CANARY_S):
            # Our gateway in our loop: there is nothing to wait on but its own view.
            while len(front.ready_members()) < workers or upkeep.canary.verdict()[1] == WAITS:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    _write(
        state,
        {
            "url": f"http://127.0.0.1:{server.port}", "token": token, "model": MODEL_NAME,
            "engines": [engine.url for engine in engines], "header": [SECRET_HEADER, secret],
            "engine_ready_s": round(ready_s, 1), "ready_s": round(time.time() - began, 1),
            "canary": list(upkeep.canary.verdict()), "argv": [*plan.argv, *job["extra"]],
            "env": {**plan.env, **job["env"]}, "facts": plan.facts,
        },
    )  # fmt: skip
    await asyncio.to_thread(sys.stdin.read)
    for reporter in reporters:
        await reporter.leave()
    await server.stop(0.5)
    await upkeep.close()
    await port.stop()
    await front.upstream.close()
    await front.gate.close()
    logs_of = [engine.tail(400) for engine in engines]
    (root / "engine.log").write_text("\n".join(line for log in logs_of for line in log))
    await asyncio.gather(*(engine.stop(0.0) for engine in engines))


def _write(path: Path, value: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value))
    part.replace(path)


if __name__ == "__main__":
    asyncio.run(serve(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])))
