"""The control of a latency measurement: a process that echoes, and has nothing else to do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Self


class Echo:
    """Context manager; `port` is where it listens, on loopback."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "measure.echo"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=30)


class _Peer(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert isinstance(self._transport, asyncio.WriteTransport)
        self._transport.write(data)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Peer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve())
