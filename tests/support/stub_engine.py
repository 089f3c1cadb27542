"""A STUB of a vLLM server as a process of its own, run as a script: `StubReplica` at the address that a replica gives.

`take=N` in a question makes its answer N words, one a second; `until=FILE` one that goes on, at the same pace, until
that file exists; else it comes at once. Its metrics say what it works on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import ssl
import sys
from itertools import count, takewhile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "src")]

from aiohttp import web  # noqa: E402
from support.stub_replica import StubReplica  # noqa: E402

from cosmos3_serve.reasoner.engine.secret import SECRET_ENV  # noqa: E402

PACE_S = 1.0


class StubEngine(StubReplica):
    words = 0

    async def _metrics(self, _: web.Request) -> web.Response:
        rows = {"num_requests_running": self.running, "num_requests_waiting": 0, "generation_tokens_total": self.words}
        return web.Response(text="".join(f'vllm:{k}{{engine="0"}} {v}.0\n' for k, v in rows.items()))

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        found = re.search(r"take=(\d+)|until=([^\s\"]+)", json.dumps(body["messages"]))
        if found is None:
            return await super()._stream(request, body)
        numbers = range(int(found[1])) if found[1] else takewhile(lambda _: not Path(found[2]).exists(), count())
        answer = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await answer.prepare(request)
        await self.event(answer, {"role": "assistant", "content": ""})
        for number in numbers:
            await self.event(answer, {"content": f"word-{number} "})
            self.words += 1
            await asyncio.sleep(PACE_S)
        await self.event(answer, {}, finish_reason="stop")
        await answer.write(b"data: [DONE]\n\n")
        await answer.write_eof()
        return answer


async def serve(port: int, key: str | None, certificate: str | None) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    stub = StubEngine("stub", os.environ[SECRET_ENV])
    tls = None
    if key and certificate:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate, key)
    await stub.start(port, tls)
    await ended.wait()
    await stub.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ssl-keyfile")
    parser.add_argument("--ssl-certfile")
    given = parser.parse_known_args()[0]
    asyncio.run(serve(given.port, given.ssl_keyfile, given.ssl_certfile))
