"""Names: addresses of hosts, by the system's resolver in threads of its own, shared fairly between tenants.

A name server that does not answer holds its thread for as long as the system likes. Who asked is told soon; the
thread counts as that tenant's until it ends, and the name is not asked for again for a while.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from cosmos3_serve.errors import NotReady
from cosmos3_serve.reasoner.shares import Shares

THREADS = 16
WAITING = 256
NAME_S = 5.0  # for one name
UNKNOWN_S = 30.0  # for which a name without an answer is not asked for again
MAX_UNKNOWN = 1024

Lookup = Callable[[str, int], list[str]]


def system_lookup(host: str, port: int) -> list[str]:
    """Blocking. Raises OSError, UnicodeError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Names:
    """Args: lookup: blocking; another one in tests."""

    def __init__(
        self, lookup: Lookup = system_lookup, *, threads: int = THREADS, name_s: float = NAME_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._lookup, self._name_s, self._clock = lookup, name_s, clock
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="names")
        self._shares = Shares(threads, WAITING, _busy, clock=clock)
        self._unknown: OrderedDict[tuple[str, str], float] = OrderedDict()  # tenant and host -> until when

    async def resolve(self, host: str, port: int, tenant: str) -> list[str]:
        """Addresses of a name.

        Raises:
            OSError: it has none, or nobody said so in time.
            NotReady: code `media_busy`: too many names wait.
        """
        key, now = (tenant, host), self._clock()
        if self._unknown.get(key, now) > now:
            raise TimeoutError("its name servers did not answer a moment ago")
        await self._shares.take(tenant)
        loop = asyncio.get_running_loop()
        answer = loop.run_in_executor(self._threads, self._lookup, host, port)
        answer.add_done_callback(lambda done: self._over(done, tenant))
        try:
            async with asyncio.timeout(self._name_s):
                return await asyncio.shield(answer)
        except TimeoutError:
            self._unknown[key] = self._clock() + UNKNOWN_S
            self._unknown.move_to_end(key)
            while len(self._unknown) > MAX_UNKNOWN:
                self._unknown.popitem(last=False)
            raise

    def _over(self, answer: asyncio.Future[list[str]], tenant: str) -> None:
        if not answer.cancelled():
            answer.exception()  # seen, whether or not somebody still waits
        self._shares.give_back(tenant)

    def close(self) -> None:
        """Wait for nobody: a thread may hang in the system for minutes."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _busy() -> NotReady:
    return NotReady("too many host names wait to be looked up", code="media_busy", retry_after_s=2)
