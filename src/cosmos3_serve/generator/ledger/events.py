"""Events: what a watcher of a batch is told, without keeping anything for batches that nobody watches.

An event carries the number of the change that it tells, so "after the last I saw" has an answer even across a restart:
the ledger has them all. Live watchers share a short tail per batch; one who falls behind it reads the ledger too, page
by page. Steps are not recorded: only the newest of each sample is told.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cosmos3_serve.contract.views import BatchEvent, BatchState
from cosmos3_serve.generator.ledger.batch import Batch

TAIL = 512
Replay = Callable[[int], Awaitable[Sequence[BatchEvent]]]


def instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def event_of(record: Mapping[str, Any], number: int, batch: Batch) -> BatchEvent | None:
    """What a watcher hears of a record, or None for what is internal."""
    match record["kind"]:
        case "reopened":
            return BatchEvent(id=number, type="batch", state=BatchState.QUEUED, at=instant(record["at"]))
        case "started":
            return BatchEvent(id=number, type="batch", state=BatchState.RUNNING, at=instant(record["at"]))
        case "sample" | "staged":
            name = batch.samples[record["i"]].name
            state, code = record["state"], record.get("code")
            return BatchEvent(id=number, type="sample", sample=name, state=state, code=code, at=instant(record["at"]))
        case "ended":
            return BatchEvent(id=number, type="end", state=record["state"], at=instant(record["at"]))
    return None


@dataclass(slots=True)
class _Channel:
    """What the watchers of one batch share. The tail holds every event after `floor`."""

    floor: int
    tail: deque[BatchEvent] = field(default_factory=deque)
    steps: dict[str, tuple[int, BatchEvent]] = field(default_factory=dict)
    version: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    watchers: int = 0

    def announce(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class EventHub:
    """All methods run on the event loop. `tail` is the number of events that live watchers of a batch share."""

    def __init__(self, tail: int = TAIL) -> None:
        self._tail = tail
        self._channels: dict[str, _Channel] = {}

    def publish(self, request_id: str, events: Sequence[BatchEvent]) -> None:
        channel = self._channels.get(request_id)
        if channel is None:
            return
        for event in events:
            channel.tail.append(event)
            if event.sample is not None:
                channel.steps.pop(event.sample, None)
        while len(channel.tail) > self._tail:
            channel.floor = channel.tail.popleft().id
        channel.announce()

    def progress(self, request_id: str, sample: str, step: int, total: int, at: float) -> None:
        channel = self._channels.get(request_id)
        if channel is None:
            return
        number = channel.tail[-1].id if channel.tail else channel.floor
        event = BatchEvent(
            id=number, type="progress", sample=sample, step=step, total_steps=total, at=instant(at)
        )  # fmt: skip
        channel.version += 1
        channel.steps[sample] = (channel.version, event)
        channel.announce()

    @property
    def watched(self) -> int:
        return len(self._channels)

    async def follow(self, request_id: str, *, at: int, after: int, replay: Replay) -> AsyncIterator[BatchEvent]:
        """Events after number `after`, old ones first, until the batch's end.

        Args:
            at: number of the batch's newest record now.
            replay: reads the next events after a number from the ledger, none once there are no more.
        """
        channel = self._channels.setdefault(request_id, _Channel(floor=at))
        channel.watchers += 1
        seen_version = 0
        try:
            while True:
                changed = channel.changed
                while after < channel.floor:
                    floor = channel.floor  # it moves on while we read
                    page = await replay(after)
                    for event in page:
                        after = event.id
                        yield event
                        if event.type == "end":
                            return
                    if not page:
                        after = floor  # what came last is no event
                for event in list(channel.tail):
                    if event.id > after:
                        after = event.id
                        yield event
                    if event.type == "end":
                        return
                for version, event in sorted(channel.steps.values(), key=lambda pair: pair[0]):
                    if version > seen_version:
                        seen_version = version
                        yield event
                await changed.wait()
        finally:
            channel.watchers -= 1
            if not channel.watchers and self._channels.get(request_id) is channel:
                del self._channels[request_id]
