"""POST of a question, on each of OpenAI's endpoints: from its bytes to the last byte of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from cosmos3_serve.errors import Cosmos3Error, Draining
from cosmos3_serve.reasoner.gateway.ask import Ask, read_ask
from cosmos3_serve.reasoner.gateway.body import BodyBudget, read_body
from cosmos3_serve.reasoner.gateway.endpoint import CHAT, Endpoint
from cosmos3_serve.reasoner.gateway.front import Front
from cosmos3_serve.reasoner.gateway.question import Question
from cosmos3_serve.reasoner.gateway.schemas import check_schemas
from cosmos3_serve.reasoner.media.item import Admitted
from cosmos3_serve.reasoner.media.locate import Located, locate
from cosmos3_serve.reasoner.media.options import put_frames
from cosmos3_serve.reasoner.media.parts import DataSource
from cosmos3_serve.reasoner.sessions.keys import MediaItem, SessionKey
from cosmos3_serve.reasoner.sessions.policy import Profile
from cosmos3_serve.service.auth import tenant_of
from cosmos3_serve.service.http_server import ON_LEAVE
from cosmos3_serve.service.openai_errors import error_message
from cosmos3_serve.service.problems import Headers, send_problem

PARSED_ON_LOOP = 2 * 1024 * 1024  # larger bodies are parsed in a thread, and written in one


class Departure:
    """While it is entered, a client that leaves cancels the task that works for it; `gone` then says so."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self._on_leave = (scope.get("extensions") or {}).get(ON_LEAVE)
        self._watch: asyncio.Task[None] | None = None
        self.gone = False

    async def __aenter__(self) -> Departure:
        task = asyncio.current_task()
        assert task is not None
        self._work = task
        if self._on_leave is not None:
            self._on_leave(self._left)
        else:
            self._watch = asyncio.create_task(self._wait())
        return self

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left()

    def _left(self) -> None:
        self.gone = True
        self._work.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool:
        if self._on_leave is not None:
            self._on_leave(None)
        if self._watch is not None:
            self._watch.cancel()
        if not self.gone:
            return False
        if kind is None:
            try:
                await asyncio.sleep(0)  # the cancellation is on its way: take it here, not in somebody else's code
            except asyncio.CancelledError:
                kind = asyncio.CancelledError
        if kind is asyncio.CancelledError:
            self._work.uncancel()
        return kind is None or issubclass(kind, asyncio.CancelledError | Cosmos3Error | ClientDisconnect)


class _Body:
    """A request's bytes until they are taken, and what of the budget they hold until it is given back."""

    def __init__(self, raw: bytes, held: int, tenant: str, budget: BodyBudget) -> None:
        self.tenant = tenant
        self._raw, self._held, self._budget = raw, held, budget

    def take(self) -> bytes:
        raw, self._raw = self._raw, b""
        return raw

    def give_back(self) -> None:
        held, self._held = self._held, 0
        if held:
            self._budget.give_back(held, self.tenant)


class Chat:
    """The route, as an ASGI application."""

    def __init__(self, front: Front, endpoint: Endpoint = CHAT) -> None:
        self.front, self.endpoint = front, endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """
        Raises:
            Cosmos3Error: for `Problems` to answer; what is known of replica and session is answered here.
        """
        front = self.front
        front.check_open()
        tenant = tenant_of(scope)
        raw, held = await read_body(scope, receive, front.settings.max_body_bytes, front.budget, tenant=tenant)
        body = _Body(raw, held, tenant, front.budget)
        del raw
        front.begin()
        departure = Departure(scope, receive)
        try:
            async with departure:
                await self._answer(scope, receive, send, body)
        except asyncio.CancelledError:
            if not front.over:
                raise
            _uncancel()
            raise _over() from None
        finally:
            front.end()
            body.give_back()
            if departure.gone:
                front.metrics.client_left()

    async def _answer(self, scope: Scope, receive: Receive, send: Send, body: _Body) -> None:
        front, tenant = self.front, body.tenant
        raw = body.take()
        located = await self._locate(raw)
        media = sum(len(part.source.text) for part in located.parts if isinstance(part.source, DataSource))
        wordy = len(raw) - media > PARSED_ON_LOOP
        del raw  # what is still needed of it is held by the parts
        model = front.setup.model
        ask = read_ask(located.body, model.name, self.endpoint, model.max_model_len, tools=front.settings.reads_tools)
        check_schemas(ask.body)
        front.salts.apply(ask.body, tenant)
        admitted = await front.gate.admit(located.parts, tenant) if located.parts else Admitted()
        del located
        headers: Headers = []
        with admitted:
            put_frames(ask.body, admitted.loading)
            key = self._key(scope, tenant, ask, admitted)
            question = Question(front, ask, admitted, key, send, headers, tenant=tenant, wordy=wordy,
                                stored=body.give_back)  # fmt: skip
            try:
                await question.run()
            except Cosmos3Error as error:
                await send_problem(error, receive, send, headers=headers, render=error_message)
            except asyncio.CancelledError:
                if not front.over:
                    raise
                _uncancel()
                if not await question.cut(_over()):
                    await send_problem(_over(), receive, send, headers=headers, render=error_message)

    async def _locate(self, raw: bytes) -> Located:
        if len(raw) <= PARSED_ON_LOOP:
            return locate(raw, self.front.limits, self.endpoint.turns)
        return await asyncio.to_thread(locate, raw, self.front.limits, self.endpoint.turns)

    def _key(self, scope: Scope, tenant: str, ask: Ask, items: Admitted) -> SessionKey | None:
        if self.front.router.profile is Profile.ROUND_ROBIN:
            return None
        keys = self.front.keys
        return (
            keys.from_headers(scope["headers"], tenant)
            or (keys.named(ask.session, tenant) if ask.session is not None else None)
            or keys.from_media(as_key_media(items), tenant)
        )


def _uncancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


def _over() -> Draining:
    return Draining(
        "the service ended before the answer did", remedy="send it again to another gateway", retry_after_s=5
    )


def as_key_media(items: Sequence[Any]) -> list[MediaItem]:
    return [MediaItem(item.kind, item.sha256) for item in items]
