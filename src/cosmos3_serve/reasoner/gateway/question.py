"""Question: one request on its way through the fleet, at most twice, and never twice after its first token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from starlette.types import Send

from cosmos3_serve.errors import Cosmos3Error, EngineFailed, LimitExceeded
from cosmos3_serve.reasoner.gateway.ask import Ask
from cosmos3_serve.reasoner.gateway.carriers import Flight
from cosmos3_serve.reasoner.gateway.event_stream import aborted, event_stream
from cosmos3_serve.reasoner.gateway.failed_requests import loggable, request_fails
from cosmos3_serve.reasoner.gateway.front import Front
from cosmos3_serve.reasoner.gateway.held_media import PartPlan
from cosmos3_serve.reasoner.gateway.parts import Payload, compose, held_parts
from cosmos3_serve.reasoner.gateway.relay import Relay
from cosmos3_serve.reasoner.gateway.replica_errors import Refusal
from cosmos3_serve.reasoner.gateway.upstream import MAX_ANSWER_BYTES, Ended, Lost, Oversized, Reply, Silent, Unreachable
from cosmos3_serve.reasoner.media.item import Admitted, MediaItem
from cosmos3_serve.reasoner.media.sampling import Sampling
from cosmos3_serve.reasoner.sessions.keys import SessionKey
from cosmos3_serve.reasoner.sessions.policy import Outcome
from cosmos3_serve.reasoner.sessions.router import Aftermath, Decision, Refused, refusals
from cosmos3_serve.reasoner.sessions.suspects import Aboard
from cosmos3_serve.service.problems import Headers

log = structlog.get_logger(__name__)

HEADER_REPLICA = b"x-cosmos3-replica"
HEADER_SESSION = b"x-cosmos3-session"
HEADER_MEDIA = b"x-cosmos3-media"


class Question:
    """
    Args:
        items: the question's media, in use as long as this lives.
        tenant: who asks: the waiting line is shared fairly between tenants.
        headers: filled with what is known of replica, session and media; also for the answer to a failure.
        wordy: the body without its media is large: it is composed in a thread.
        stored: called once the request's own bytes are not needed any more: it waits, or it was sent.
    """

    def __init__(
        self,
        front: Front,
        ask: Ask,
        items: Admitted,
        key: SessionKey | None,
        send: Send,
        headers: Headers,
        *,
        tenant: str = "",
        wordy: bool = False,
        stored: Callable[[], None] = lambda: None,
    ) -> None:
        self._stored = stored
        self._wordy = wordy
        self._front, self._ask, self._items, self._key, self._headers = front, ask, items, key, headers
        self._parts = held_parts(items)
        self._tenant = tenant
        self._events = event_stream(ask.endpoint)
        self._relay = Relay(send, headers, front.setup.model.name, self._events)
        self._began_at = front.clock()
        self._flight: Flight | None = None

    async def run(self) -> None:
        """
        Raises:
            Cosmos3Error: nothing of an answer was sent; a stream that broke was ended with an error event instead.
        """
        front, n = self._front, self._ask.n
        request = await self._request()
        after: Decision | None = None
        while True:

            def room(after: Decision | None = after) -> bool:
                return front.router.has_room(front.clock(), n, after)

            async def choose(after: Decision | None = after) -> Decision:
                return await front.router.choose(self._key, front.clock(), request=request, n=n, after=after)

            shape = (n, () if after is None else tuple(sorted(refusals(after).items())))
            decision = await front.line.place(
                choose, room=room, shape=shape, owner=self._tenant, n=n, waits=self._let_go
            )
            try:
                aftermath = await self._attempt(decision)
            finally:
                front.router.on_finished(decision, front.clock())
                front.line.wake()
            if aftermath.error is not None:
                raise aftermath.error
            if not aftermath.retry:
                return
            after = decision

    async def cut(self, error: Cosmos3Error) -> bool:
        """After `run` was cancelled: end a stream that began. False: nothing was sent, the error can be the answer."""
        if self._relay.begun:
            self._front.metrics.broken_stream()
            await self._relay.broken(error)
        return self._relay.begun

    async def _request(self) -> Aboard:
        media = [(item.sha256, item.options) for item in self._items]
        digest = await asyncio.to_thread(self._ask.digest, media) if self._wordy else self._ask.digest(media)
        return Aboard(digest, tuple(item.sha256 for item in self._items))

    # ---- one attempt ------------------------------------------------------------------------------------------------

    async def _attempt(self, decision: Decision) -> Aftermath:
        """What the router makes of it; empty once the client has its answer."""
        router, now = self._front.router, self._front.clock
        reply: Reply | None = None
        try:
            reply, warm = await self._send(decision)
            self._note(decision, warm)
            if reply.status >= 400:
                return await self._refused(decision, await reply.refusal())
            router.on_accepted(decision, now())
            return await self._relayed(decision, reply, warm)
        except Unreachable:
            self._note(decision, None)
            return router.on_refused(decision, now(), Refused.UNREACHABLE)
        except Silent:
            self._note(decision, None)
            return await self._over(router.on_refused(decision, now(), Refused.TIMED_OUT))
        except Lost as lost:
            self._note(decision, None)
            return await self._over(router.on_died(decision, now(), ended=isinstance(lost, Ended)))
        except Oversized:
            return Aftermath(error=_oversized())
        finally:
            self._landed()
            if reply is not None:
                reply.close()

    async def _send(self, decision: Decision) -> tuple[Reply, bool]:
        """The replica's status, and whether it held all media. A cache miss is answered with the bytes; that is no
        second attempt."""
        front, ref = self._front, decision.ref
        url = front.url_of(ref)
        if not url:
            raise Unreachable
        plans = self._plans(decision)
        while True:
            needed = {plan.uuid for plan in plans if plan.with_data}
            flight = front.carriers.of(ref, needed)
            if flight is not None:
                plans = _by_name(plans)
            elif needed:
                self._flight = front.carriers.begin(ref, needed)
            payload = await self._compose(plans)

            def sent(payload: Payload = payload) -> None:
                payload.release()
                self._let_go()

            reply = await front.upstream.ask(url, payload, self._ask.endpoint.path, sent)
            warm = not any(plan.with_data for plan in plans)
            if reply.status != 400 or all(plan.with_data for plan in plans):
                return reply, warm
            try:
                refusal = await reply.refusal()
            finally:
                reply.close()
            if not refusal.cache_miss:
                return _Refused(refusal), warm
            if flight is not None:
                await flight.wait()
                plans = front.held.plan(self._parts, ref)
            else:
                front.metrics.media_resent()
                plans = front.held.on_miss(self._parts, ref)

    def _plans(self, decision: Decision) -> list[PartPlan]:
        """What goes with its bytes. A session that another gateway has brought home is tried by name alone: a miss
        costs a few milliseconds, bytes that the replica holds already cost it decoding them again."""
        plans = self._front.held.plan(self._parts, decision.ref)
        if self._front.settings.gateways > 1 and decision.outcome is Outcome.HIT:
            return _by_name(plans)
        return plans

    async def _compose(self, plans: Sequence[PartPlan]) -> Payload:
        if self._wordy:
            return await asyncio.to_thread(compose, self._ask.body, self._items, plans)
        return compose(self._ask.body, self._items, plans)

    async def _refused(self, decision: Decision, refusal: Refusal) -> Aftermath:
        router, now = self._front.router, self._front.clock()
        if refusal.status >= 500 and refusal.why is Refused.SERVER_ERROR:
            await self._log(decision, refusal)
        if refusal.engine_dead:
            return router.on_died(decision, now)
        well = not router.health.examined(decision.ref)
        aftermath = router.on_refused(decision, now, refusal.why, retry_after_s=refusal.retry_after_s)
        if aftermath.retry or aftermath.error:
            return aftermath
        if refusal.why is Refused.SERVER_ERROR:
            digest = decision.request.digest
            if self._front.failed.on_failed(self._tenant, digest, well=well):
                return Aftermath(error=request_fails())
        return Aftermath(error=refusal.as_error())

    async def _log(self, decision: Decision, refusal: Refusal) -> None:
        """Why a replica failed. Its words, not the client's."""
        message, body = refusal.message, self._ask.body
        reason = await asyncio.to_thread(loggable, message, body) if self._wordy else loggable(message, body)
        log.warning("replica_failed", replica=decision.replica, status=refusal.status, type=refusal.type, reason=reason)

    async def _relayed(self, decision: Decision, reply: Reply, warm: bool) -> Aftermath:
        """
        Raises:
            Lost, Silent.
        """
        first = await (self._first(reply) if self._ask.stream else reply.whole())
        if not first:
            raise Lost
        if aborted(first):
            raise Ended
        refusal = self._events.refusal(first) if self._ask.stream else None
        if refusal is not None:
            return await self._refused(decision, refusal)
        front = self._front
        front.router.on_first_token(decision, front.clock())
        front.metrics.first_byte(front.clock() - self._began_at)
        if self._parts:
            front.held.on_answer(self._parts, decision.ref)
            self._landed()
            front.metrics.media(warm)
        if self._ask.explain:
            self._relay.explanation = explanation(decision, self._items, warm)
        if self._ask.stream:
            await self._relay.stream(first, reply)
        else:
            await self._relay.whole(first)
        front.router.on_completed(decision)
        front.failed.on_completed(self._tenant, decision.request.digest)
        return Aftermath()

    async def _first(self, reply: Reply) -> bytes:
        """A stream up to what the engine has said first; empty where it ends before."""
        first = await reply.next()
        while first and not self._events.begun(first):
            piece = await reply.next()
            first = first + piece if piece else b""
            if len(first) > MAX_ANSWER_BYTES:
                raise Oversized
        return first

    async def _over(self, aftermath: Aftermath) -> Aftermath:
        """A failure after the answer began becomes its end."""
        if not self._relay.begun:
            return aftermath
        self._front.metrics.broken_stream()
        await self._relay.broken(aftermath.error or _lost())
        return Aftermath()

    def _let_go(self) -> None:
        self._items.forget_texts()
        self._stored()

    def _landed(self) -> None:
        """The replica has what this question carried, or will not get it from here."""
        if self._flight is not None:
            self._flight.end()
            self._flight = None

    def _note(self, decision: Decision, warm: bool | None) -> None:
        if self._relay.begun:
            return
        self._headers[:] = [
            (HEADER_REPLICA, decision.replica.encode()),
            (HEADER_SESSION, decision.outcome.value.encode()),
        ]
        if self._parts and warm is not None:
            self._headers.append((HEADER_MEDIA, b"hit" if warm else b"miss"))


def _by_name(plans: Sequence[PartPlan]) -> list[PartPlan]:
    return [PartPlan(plan.uuid, False) for plan in plans]


class _Refused(Reply):
    """A refusal that was read already."""

    def __init__(self, refusal: Refusal) -> None:
        self._refusal = refusal
        self.status = refusal.status

    async def refusal(self) -> Refusal:
        return self._refusal

    def close(self) -> None:
        pass


def _lost() -> Cosmos3Error:
    return EngineFailed("the answer broke off", code="replica_lost", remedy="send the request again")


def _oversized() -> Cosmos3Error:
    return LimitExceeded(
        f"the answer is larger than {MAX_ANSWER_BYTES} bytes",
        code="answer_too_large",
        remedy="ask for a stream, or for fewer choices, tokens or logprobs",
    )


def explanation(decision: Decision, items: Admitted, warm: bool) -> dict[str, Any]:
    """What really happened to a question, for `{"cosmos3": {"explain": true}}`."""
    return {
        "replica": decision.replica,
        "session": decision.outcome.value,
        "session_from": decision.key.source if decision.key else None,
        "attempt": decision.attempt,
        "media": [{**media_explanation(item), "held_by_replica": warm} for item in items],
    }


def media_explanation(item: MediaItem) -> dict[str, Any]:
    """The frames that a replica really uses of a video (indices, timestamps, rate, size, tokens), and what was read of
    the client's file (docs/media.md)."""
    info = item.info
    return {
        "part": item.param,
        "kind": item.kind,
        "sha256": item.sha256,
        "codec": info.codec,
        "frames": info.frames,
        "fps": round(info.fps, 4),
        "duration_s": round(info.duration_s, 3),
        "width": info.width,
        "height": info.height,
        "normalised": list(info.normalised),
        "record": (item.original or info).record,
        **({"sampling": item.cost.as_dict()} if isinstance(item.cost, Sampling) else {"tokens": item.cost.tokens}),
    }
