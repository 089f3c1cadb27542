"""An instant worker for Dynamo's frontend, run by Dynamo's own Python: `dynamo_worker.py MODEL_DIR COUNT_FILE`.

Answers `max_tokens` tokens; more than one comes `GAP_S` apart, as from the stub engine. How often it was asked stands
in COUNT_FILE, at most a tenth of a second late.
"""

import asyncio
import signal
import sys
from pathlib import Path

import uvloop
from dynamo.llm import ModelInput, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime, dynamo_worker

GAP_S = 0.01
MODEL, COUNT = Path(sys.argv[1]), Path(sys.argv[2])
asked = 0


async def handler(request, context=None):  # type: ignore[no-untyped-def]
    global asked
    asked += 1
    tokens = (request.get("stop_conditions") or {}).get("max_tokens") or 1
    loop = asyncio.get_running_loop()
    due = loop.time()
    for number in range(tokens):
        if tokens > 1:
            due += GAP_S
            await asyncio.sleep(max(0.0, due - loop.time()))
        yield {"token_ids": [number % 50 + 300], **({"finish_reason": "stop"} if number == tokens - 1 else {})}


async def tell() -> None:
    told = -1
    while True:
        if told != asked:
            told = asked
            COUNT.write_text(str(asked))
        await asyncio.sleep(0.1)


@dynamo_worker()
async def main(runtime: DistributedRuntime) -> None:
    endpoint = runtime.endpoint("dynamo.backend.generate")
    kind = WorkerType.Aggregated
    await register_model(ModelInput.Tokens, ModelType.Chat, endpoint, str(MODEL), "bench", worker_type=kind)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, runtime.shutdown)
    telling = asyncio.create_task(tell())
    await endpoint.serve_endpoint(handler, graceful_shutdown=True)
    telling.cancel()


if __name__ == "__main__":
    uvloop.run(main())
