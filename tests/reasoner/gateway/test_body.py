"""Bodies in: whole however they come, bounded in bytes, time and memory, and nothing stays held."""

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from cosmos3_serve.errors import LimitExceeded, NotReady, RequestTimeout
from cosmos3_serve.reasoner.gateway.body import BodyBudget, chunks, read_body


class Sender:
    def __init__(self, *pieces: bytes, then: str = "end", length: int | None = None) -> None:
        self.pieces, self.then, self.reads = list(pieces), then, 0
        headers = [] if length is None else [(b"content-length", str(length).encode())]
        self.scope: dict[str, Any] = {"type": "http", "headers": headers}

    async def receive(self) -> dict[str, Any]:
        self.reads += 1
        if self.pieces:
            piece = self.pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self.pieces) or self.then != "end"}
        if self.then == "silence":
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}


async def read(sender: Sender, budget: BodyBudget, limit: int = 100, timeout_s: float = 5) -> bytes:
    body, held = await read_body(sender.scope, sender.receive, limit, budget, timeout_s)
    assert budget.held == held >= len(body)
    budget.give_back(held)
    return body


@pytest.mark.parametrize("pieces", [(b"",), (b"one",), (b"one", b"two"), (b"", b"a", b"", b"b")])
@pytest.mark.parametrize("announce", [True, False])
async def test_a_body_is_whole_however_it_comes(pieces: tuple[bytes, ...], announce: bool) -> None:
    whole = b"".join(pieces)
    budget = BodyBudget()
    assert await read(Sender(*pieces, length=len(whole) if announce else None), budget) == whole
    assert budget.held == 0
    sender = Sender(*pieces)
    assert b"".join([piece async for piece in chunks(sender.scope, sender.receive, 100)]) == whole


@pytest.mark.parametrize(
    ("sender", "failure", "reads"),
    [
        (Sender(b"x", length=101), LimitExceeded, 0),  # announced: not a byte is read
        (Sender(b"x" * 60, b"x" * 60), LimitExceeded, 2),
        (Sender(b"x", then="silence"), RequestTimeout, 2),
        (Sender(b"x", then="leave"), ClientDisconnect, 2),
        (Sender(b"x" * 10, length=95), None, 1),
    ],
)
async def test_what_ends_a_body_early_holds_nothing(sender: Sender, failure: Any, reads: int) -> None:
    budget = BodyBudget()
    if failure is None:
        await read(sender, budget)
    else:
        with pytest.raises(failure):
            await read(sender, budget, timeout_s=0.05)
    assert budget.held == 0
    assert sender.reads == reads


async def test_all_bodies_together_are_bounded() -> None:
    budget = BodyBudget(max_bytes=150)
    _, held = await read_body(Sender(b"x" * 90).scope, Sender(b"x" * 90).receive, 100, budget)
    for sender in (Sender(b"x", length=90), Sender(b"x" * 50, b"x" * 40)):
        with pytest.raises(NotReady) as full:
            await read(sender, budget)
        assert full.value.stable_code == "gateway_memory_full"
        assert budget.held == held
