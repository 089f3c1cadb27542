"""Hand a batch over and wait for its end.

A service with a ledger takes `Prefer: respond-async`, answers 202, tells events, and keeps the response; a baseline
service ignores the header and answers 200 when the batch is done. Both end in the exact bytes of one response.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
from pydantic import ValidationError

from cosmos3_serve.client import problem
from cosmos3_serve.client.events import parse_events
from cosmos3_serve.client.http import MIB, Service
from cosmos3_serve.client.progress import Progress
from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.contract.views import BatchView
from cosmos3_serve.errors import ContractViolation, Cosmos3RayServeError, Incomplete
from cosmos3_serve.retry import FIRST_CONTACT, PASSING_STATUSES, PATIENT

MAX_RESPONSE_BYTES = 256 * MIB
SILENCE_S = 45.0  # without an event or a heartbeat the state is asked for anew
POLL_S = (0.5, 5.0)
# A POST that is not idempotent is sent again only when it certainly was not received, or not taken.
NOT_IDEMPOTENT = replace(FIRST_CONTACT, resend=False, statuses=frozenset({429}))


async def probe(service: Service, request_id: str) -> tuple[bool, BatchView | None]:
    """Whether the service keeps a ledger, and what it knows of this batch.

    A baseline service answers 404 (or 405) without a code; ours answers 404 with a code.
    """
    answer = await service.call("GET", f"/v1/batches/{request_id}", retry=FIRST_CONTACT)
    if answer.status == 200:
        return True, _view(answer.body)
    if answer.status in (404, 405):
        return bool(problem.parse(answer.body).get("code")), None
    raise answer.failure()


async def hand_over(service: Service, body: bytes, *, ledger: bool) -> bytes | None:
    """POST the batch; returns the response of a service that blocked, None once it was accepted (202).

    Raises:
        Cosmos3Error: typed by the answer; then nothing was accepted.
        Unreachable (with `sent`), Incomplete (code `outcome_unknown`): it may have been accepted.
    """
    answer = await service.call(
        "POST",
        "/v1/batches",
        content=body,
        headers={"Content-Type": "application/json", "Prefer": "respond-async"},
        retry=PATIENT if ledger else NOT_IDEMPOTENT,
        read_s=60.0 if ledger else None,
        max_bytes=MAX_RESPONSE_BYTES,
    )
    if answer.status == 202:
        return None
    if answer.ok:
        return answer.body
    failure = answer.failure()
    if answer.resent and answer.status in PASSING_STATUSES:
        # An earlier attempt may have been accepted before the service began to refuse: nothing is concluded from this.
        raise Incomplete(failure.detail, code="outcome_unknown")
    raise failure


async def fetch_response(service: Service, request_id: str) -> bytes:
    """The exact bytes of the response of an ended batch."""
    path = f"/v1/batches/{request_id}/response"
    answer = await service.call("GET", path, retry=PATIENT, max_bytes=MAX_RESPONSE_BYTES)
    if not answer.ok:
        raise answer.failure()
    return answer.body


class Follower:
    """Waits for the end of one batch: events while they flow, the view whenever they do not."""

    def __init__(self, service: Service, request_id: str, progress: Progress) -> None:
        self._service, self._id, self._progress = service, request_id, progress
        self._states: dict[str, str] = {}
        self._done = 0  # of them; counted as they change, because a batch of thousands tells thousands of events
        self._last = 0  # id of the last event seen
        self._events = True

    async def wait(self) -> BatchView:
        """The view of the ended batch.

        Raises:
            Incomplete: the deadline passed, or the service was away for too long.
            Cosmos3RayServeError: code `batch_unknown` or `batch_expired`.
        """
        fruitless = 0
        while True:
            view = await self._look()
            if view.state.ended:
                return view
            before = self._last
            if self._events:
                await self._listen()
            fruitless = 0 if self._last > before else fruitless + 1
            if not self._events or fruitless:
                low, high = POLL_S
                wait = min(high, low * 1.5 ** min(fruitless, 10), self._service.deadline.left())
                await asyncio.sleep(wait)

    async def _look(self) -> BatchView:
        answer = await self._service.call("GET", f"/v1/batches/{self._id}", retry=PATIENT)
        if answer.status == 404:
            raise Cosmos3RayServeError(
                f"the service no longer knows batch {self._id}",
                remedy="run again with --resume: the same request is posted again under the same id",
                code="batch_unknown",
            )
        if not answer.ok:
            raise answer.failure()
        view = _view(answer.body)
        self._states = {sample.name: sample.state.value for sample in view.samples}
        self._done = sum(map(_ended, self._states.values()))
        self._tell()
        return view

    async def _listen(self) -> None:
        """Read events until the stream ends, is cut or falls silent; the caller then looks at the view."""
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": str(self._last)} if self._last else {})
        try:
            async with (
                asyncio.timeout(self._service.deadline.left()),
                self._service.stream(f"/v1/batches/{self._id}/events", headers=headers, read_s=SILENCE_S) as response,
            ):
                if response.status_code != 200:
                    self._events = response.status_code in PASSING_STATUSES
                    return
                async for message in parse_events(response.aiter_raw()):
                    event = message.batch_event()
                    self._last = max(self._last, event.id)
                    if event.sample and event.step is not None and event.total_steps:
                        self._progress.step(event.sample, event.step, event.total_steps)
                    if event.type == "sample" and event.sample and event.state:
                        self.changed(event.sample, event.state)
                    if event.type == "end":
                        return
        except httpx.TransportError:
            return
        except TimeoutError:
            raise self._service.deadline.exceeded(f"waiting for batch {self._id}") from None

    def changed(self, sample: str, state: str) -> None:
        """Take a sample's new state and tell the sum."""
        self._done += _ended(state) - _ended(self._states.get(sample, ""))
        self._states[sample] = state
        self._tell()

    def _tell(self) -> None:
        self._progress.samples(self._done, len(self._states))


def _ended(state: str) -> bool:
    return state in (SampleState.SUCCEEDED, SampleState.FAILED, SampleState.CANCELLED)


def _view(body: bytes) -> BatchView:
    try:
        return BatchView.model_validate_json(body)
    except ValidationError as error:
        fields = ", ".join(".".join(map(str, e["loc"])) for e in error.errors()[:5])
        raise ContractViolation(f"the service's view of the batch is invalid: {fields}") from None
