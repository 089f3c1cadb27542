"""A stand-in for vLLM's server in supervision tests, run as a script: same address arguments, same middleware hook.

`--behave` says how: ok, import-error, arguments, model, memory, mute (never answers), or stubborn (ignores SIGTERM).
It starts a helper in a session of its own, as an engine starts workers.
"""

import argparse
import importlib
import os
import signal
import subprocess
import sys
import time

LAST_WORDS = {
    "import-error": "Traceback (most recent call last):\nModuleNotFoundError: No module named 'vllm'",
    "arguments": "usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: --nonsense",
    "model": "(APIServer pid=1) ValueError: Model architectures ['Nothing'] are not supported for now.",
    "memory": "(EngineCore pid=2) ERROR 11-29 19:00:00 [core.py:1] ValueError: No available memory for the cache.\n"
    "RuntimeError: Engine core initialization failed. See root cause above.",
}

parser = argparse.ArgumentParser()
parser.add_argument("--behave", default="ok")
parser.add_argument("--host")
parser.add_argument("--port", type=int)
parser.add_argument("--middleware")
parser.add_argument("--idle", action="store_true")
parser.add_argument("--chatter", type=int, default=0)
args, _ = parser.parse_known_args()

subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
if args.behave in LAST_WORDS:
    print(LAST_WORDS[args.behave], flush=True)
    sys.exit(2 if args.behave == "arguments" else 1)
if args.behave == "mute":
    print("thinking", flush=True)
    time.sleep(600)
for number in range(args.chatter):
    print(f"line {number} " + "x" * 1000, flush=True)

load = {"running": 0, "waiting": 0} if args.idle else {"running": 2, "waiting": 1}


def serve() -> None:
    # Here, since a start that fails never needs them: a third of a second of CPU.
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse
    from starlette.routing import Route

    async def health(_: Request) -> PlainTextResponse:
        return PlainTextResponse("")

    async def metrics(_: Request) -> PlainTextResponse:
        rows = "".join(f'vllm:num_requests_{k}{{engine="0"}} {v}.0\n' for k, v in load.items())
        return PlainTextResponse(f'# HELP x y\n{rows}vllm:num_requests_waiting_by_reason{{reason="capacity"}} 9.0\n')

    async def idle(_: Request) -> PlainTextResponse:
        load.update(running=0, waiting=0)
        return PlainTextResponse("")

    async def busy(_: Request) -> PlainTextResponse:
        load.update(running=1)
        return PlainTextResponse("")

    async def environ(_: Request) -> JSONResponse:
        return JSONResponse(dict(os.environ))

    paths = {"health": health, "metrics": metrics, "idle": idle, "busy": busy, "environ": environ}
    app = Starlette(routes=[Route(f"/{name}", answer) for name, answer in paths.items()])
    module, _, name = args.middleware.rpartition(".")
    app.add_middleware(getattr(importlib.import_module(module), name))

    server = uvicorn.Server(uvicorn.Config(app, host=args.host, port=args.port, log_level="error"))
    if args.behave == "stubborn":
        server.handle_exit = lambda *_: None  # type: ignore[method-assign]
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server.run()


serve()
