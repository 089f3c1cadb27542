"""The control: uvicorn and a keep-alive HTTP client, and nothing else. No token, no look at the body, no routing.

Run as a script: `plain_proxy.py PORT URL...`. What it costs is what any Python gateway of this shape costs at least.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import aiohttp
import uvicorn


class PlainProxy:
    def __init__(self, urls: list[str]) -> None:
        self._urls = itertools.cycle(urls)
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
        pieces, more = [], True
        while more:
            message = await receive()
            pieces.append(message.get("body", b""))
            more = message.get("more_body", False)
        url = next(self._urls) + scope["path"]
        async with self._session.post(
            url, data=b"".join(pieces), headers={"content-type": "application/json"}
        ) as answer:
            kind = answer.headers["content-type"].encode()
            await send({"type": "http.response.start", "status": answer.status, "headers": [(b"content-type", kind)]})
            while piece := await answer.content.readany():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    config = uvicorn.Config(
        PlainProxy(sys.argv[2:]), host="127.0.0.1", port=int(sys.argv[1]), http="httptools", loop="uvloop",
        lifespan="off", access_log=False, log_level="error", backlog=1024,
    )  # fmt: skip
    uvicorn.Server(config).run()
