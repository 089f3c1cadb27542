"""Bodies in: bounded in bytes, in time, and in the memory that all of them take together."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from cosmos3_serve.errors import LimitExceeded, NotReady, RequestTimeout
from cosmos3_serve.reasoner.shares import RECENT_S, Owners

BODY_TIMEOUT_S = 120.0
HELD_BYTES = 1024 * 1024 * 1024
RETRY_AFTER_S = 2.0


class BodyBudget:
    """Bytes of request bodies that one gateway holds at once. One tenant holds at most half of them while others have
    been here in the last minutes."""

    def __init__(self, max_bytes: int = HELD_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_bytes = max_bytes
        self.held = 0
        self._of: Counter[str] = Counter()
        self._owners = Owners(RECENT_S, clock)

    def take(self, size: int, tenant: str = "") -> None:
        """
        Raises:
            NotReady: code `gateway_memory_full`.
        """
        if not size:
            return
        self._owners.note(tenant)
        mine = self._of[tenant] + size
        if self.held + size > self.max_bytes or (mine > self.max_bytes // 2 and self._owners.others(tenant)):
            raise NotReady(
                f"request bodies hold {self.held} of {self.max_bytes} bytes, {self._of[tenant]} of them this tenant's",
                code="gateway_memory_full",
                remedy="upload the video once (POST /v1/files), or try again",
                retry_after_s=RETRY_AFTER_S,
            )
        self._of[tenant] = mine
        self.held += size

    def give_back(self, size: int, tenant: str = "") -> None:
        self.held -= size
        self._of[tenant] -= size
        if self._of[tenant] <= 0:
            del self._of[tenant]


def announced(scope: Scope) -> int | None:
    """The Content-Length, None for a body of unknown length."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return None


async def chunks(
    scope: Scope, receive: Receive, max_bytes: int, timeout_s: float = BODY_TIMEOUT_S
) -> AsyncIterator[bytes]:
    """The body as it arrives.

    Raises:
        LimitExceeded: 413 `body_too_large`, at once when the length is announced, else while it streams.
        RequestTimeout: nothing came for `timeout_s` seconds.
        ClientDisconnect: nobody is left to answer.
    """
    if (announced(scope) or 0) > max_bytes:
        raise _too_large(max_bytes)
    seen = 0
    while True:
        try:
            async with asyncio.timeout(timeout_s):
                message = await receive()
        except TimeoutError:
            raise RequestTimeout(f"no byte of the request body came for {timeout_s:g} seconds") from None
        if message["type"] != "http.request":
            raise ClientDisconnect
        piece: bytes = message.get("body", b"")
        seen += len(piece)
        if seen > max_bytes:
            raise _too_large(max_bytes)
        if piece:
            yield piece
        if not message.get("more_body", False):
            return


async def read_body(
    scope: Scope,
    receive: Receive,
    max_bytes: int,
    budget: BodyBudget,
    timeout_s: float = BODY_TIMEOUT_S,
    tenant: str = "",
) -> tuple[bytes, int]:
    """The whole body, and what of the budget it holds (to be given back). Raises as `chunks` and `BodyBudget.take`."""
    length = announced(scope) or 0
    if length > max_bytes:
        raise _too_large(max_bytes)
    held = length
    budget.take(held, tenant)
    pieces: list[bytes] = []
    seen, more = 0, True
    try:
        async with asyncio.timeout(timeout_s):
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    raise ClientDisconnect
                piece, more = message.get("body", b""), message.get("more_body", False)
                pieces.append(piece)
                seen += len(piece)
                if seen > max_bytes:
                    raise _too_large(max_bytes)
                if seen > held:
                    budget.take(seen - held, tenant)
                    held = seen
        # Joined once: a buffer that grows copies what it holds again and again.
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), held
    except TimeoutError:
        budget.give_back(held, tenant)
        raise RequestTimeout(f"the request body was not complete after {timeout_s:g} seconds") from None
    except BaseException:
        budget.give_back(held, tenant)
        raise


def _too_large(max_bytes: int) -> LimitExceeded:
    return LimitExceeded(
        f"the request body is larger than {max_bytes} bytes",
        code="body_too_large",
        remedy="upload the video once (POST /v1/files) and send file-id:<id>, or ask the operator for a larger limit",
    )
