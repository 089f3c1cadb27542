"""Waves: which waiting samples go to the engine next, and together.

Pure: no clock, no I/O, no tasks; the caller passes `now` (seconds, monotonic). The rules, in the order they decide:

1. Batches take turns to head a wave, so that a batch of a thousand never blocks a batch of one. A batch whose first
   samples still wait for their inputs keeps its place and is passed over, not waited for.
2. The head's wave key decides who may join; its own batch fills first, then the others one by one in turn. The
   look-ahead is bounded, and joining never costs a batch its own turn.
3. A wave that is not full waits a moment for company (`wait_s`), and longer while the engine denoises anyway: to start
   it then would only fix its company earlier. Nothing else may overtake it meanwhile.
4. With a cap, a wave's expected time stays under it: an unknown shape runs alone, and a shape which alone exceeds the
   cap is refused.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from cosmos3_serve.errors import DeadlineUnreachable, FieldError, LimitExceeded, QueueFull
from cosmos3_serve.generator.queue.durations import Durations

LOOKAHEAD = 256
LONGEST_RETRY_S = 3600.0


@dataclass(frozen=True, slots=True)
class Ticket:
    """One waiting sample.

    Attributes:
        batch: request id.
        index: place of the sample in its batch.
        key: what must be equal within a wave (`contract.grouping.wave_key`).
        shape: what decides how long it takes.
        ready: its inputs are here, or it has none.
    """

    batch: str
    index: int
    key: Hashable
    shape: Hashable
    ready: bool = True


@dataclass(frozen=True, slots=True)
class Wave:
    number: int
    tickets: tuple[Ticket, ...]
    started: float
    expected_s: float | None


@dataclass(slots=True)
class _Line:
    """The waiting samples of one batch, by index: those that may start and those that need their inputs first."""

    since: float
    ready: list[int] = field(default_factory=list)
    unready: list[int] = field(default_factory=list)
    tickets: dict[int, Ticket] = field(default_factory=dict)


class WaveScheduler:
    """Bounded queue and wave builder.

    Args:
        queue_limit: samples that may wait.
        wave_limit: samples in one wave.
        in_flight: waves that may be out at once; 1 where the engine's finish phase doesn't overlap the next denoise.
        cap_s: longest time of one wave, or None.
        wait_s: how long a wave that is not full waits for company.
        durations: measured times, shared with whoever measures.

    `depth` counts the samples that wait, `promised` the places of batches that are just being accepted.
    """

    def __init__(
        self,
        *,
        queue_limit: int,
        wave_limit: int,
        in_flight: int = 1,
        cap_s: float | None = None,
        wait_s: float = 0.0,
        durations: Durations | None = None,
    ) -> None:
        self._queue_limit = queue_limit
        self._wave_limit = wave_limit
        self._in_flight_limit = in_flight
        self._cap_s = cap_s
        self._wait_s = wait_s
        self._lines: OrderedDict[str, _Line] = OrderedDict()
        self._out: dict[int, Wave] = {}
        self._paced_from = 0.0
        self.durations = durations or Durations()
        self.depth = 0
        self.promised = 0
        self.waves_started = 0
        self.last_wave_at: float | None = None
        self.retry_at: float | None = None

    # ---- joining and leaving the queue

    def check(self, tickets: Sequence[Ticket]) -> None:
        """Raise what `offer` would raise, changing nothing.

        Raises:
            LimitExceeded: more samples than the queue could ever hold.
            DeadlineUnreachable: a shape that alone takes longer than the cap; names the samples.
            QueueFull: no room now; `retry_after_s` from the recent pace.
        """
        if len(tickets) > self._queue_limit:
            raise LimitExceeded(
                f"{len(tickets)} samples in one batch; the queue holds {self._queue_limit}",
                remedy="split the batch",
            )
        hopeless = [t for t in tickets if self._hopeless(t)]
        if hopeless:
            found = [
                FieldError(
                    f"samples[{t.index}]",
                    f"a sample of this shape took {self.durations.expected(t.shape):.0f} s; the cap is {self._cap_s} s",
                    "ask for fewer frames, steps or pixels",
                )
                for t in hopeless
            ]
            raise DeadlineUnreachable(f"{found[0].field}: {found[0].message}", errors=found)
        missing = self.depth + self.promised + len(tickets) - self._queue_limit
        if missing > 0:
            wait = min(LONGEST_RETRY_S, max(1.0, missing * self.durations.sample_s))
            raise QueueFull(
                f"{self.depth} samples wait and {len(tickets)} more would exceed the queue of {self._queue_limit}",
                remedy=f"try again in {wait:.0f} s",
                retry_after_s=wait,
            )

    def offer(self, tickets: Sequence[Ticket], now: float, *, force: bool = False) -> None:
        """Queue all tickets or none. `force` skips the checks (a restart must not lose what was accepted)."""
        if not force:
            self.check(tickets)
        for ticket in tickets:
            line = self._lines.setdefault(ticket.batch, _Line(since=now))
            if ticket.index in line.tickets:
                raise ValueError(f"sample {ticket.index} of {ticket.batch} waits already")
            line.tickets[ticket.index] = ticket
            insort(line.ready if ticket.ready else line.unready, ticket.index)
            self.depth += 1

    def unready(self, limit: int) -> list[Ticket]:
        """Up to `limit` samples whose inputs should be fetched next: batches in turn, each in its own order."""
        queues = [(line, iter(line.unready)) for line in self._lines.values() if line.unready]
        found: list[Ticket] = []
        while queues and len(found) < limit:
            rest = []
            for line, indexes in queues:
                index = next(indexes, None)
                if index is None:
                    continue
                rest.append((line, indexes))
                found.append(line.tickets[index])
            queues = rest
        return found[:limit]

    def make_ready(self, batch: str, index: int, *, key: Hashable, shape: Hashable) -> bool:
        """The sample's inputs are here (what they hold may have changed its key). False if it no longer waits."""
        line = self._lines.get(batch)
        if line is None or index not in line.tickets:
            return False
        if not line.tickets[index].ready:
            line.unready.remove(index)
            insort(line.ready, index)
        line.tickets[index] = Ticket(batch, index, key, shape)
        return True

    def withdraw(self, batch: str, indexes: Sequence[int] | None = None) -> list[Ticket]:
        """Take waiting samples (default: all of the batch) out of the queue; those that don't wait are ignored."""
        line = self._lines.get(batch)
        if line is None:
            return []
        wanted = list(line.tickets) if indexes is None else [i for i in indexes if i in line.tickets]
        return [self._take(line.tickets[index]) for index in sorted(wanted)]

    # ---- waves

    def next_wave(self, now: float, *, denoising: bool = False) -> Wave | None:
        """The next wave, or None while the engine has enough, nobody is ready, or the wave waits for company; then
        `retry_at` says until when, if time alone decides.

        Args:
            denoising: a wave is out and still denoises.
        """
        self.retry_at = None
        if len(self._out) >= self._in_flight_limit:
            return None
        head = next((line.tickets[line.ready[0]] for line in self._lines.values() if line.ready), None)
        if head is None:
            return None
        expected = self.durations.expected(head.shape)
        members = [head]
        if not (self._cap_s is not None and expected is None):
            for ticket in self._candidates(head):
                if len(members) >= self._wave_limit:
                    break
                share = self.durations.expected(ticket.shape)
                if self._cap_s is not None:
                    if share is None or expected is None or expected + share > self._cap_s:
                        continue
                    expected += share
                elif expected is not None:
                    expected = None if share is None else expected + share
                members.append(ticket)
        if len(members) < self._wave_limit:
            if denoising:
                return None
            patience = self._lines[head.batch].since + self._wait_s
            if now < patience:
                self.retry_at = patience
                return None
        for ticket in members:
            self._take(ticket)
        if head.batch in self._lines:
            self._lines.move_to_end(head.batch)
        self.waves_started += 1
        self.last_wave_at = now
        if not self._out:
            self._paced_from = now
        wave = Wave(self.waves_started, tuple(members), now, expected)
        self._out[wave.number] = wave
        return wave

    def finish(self, wave: Wave, now: float, engine_s: float | None = None) -> list[Ticket]:
        """The wave is over. `engine_s`, where known, is the time that the engine gave to it alone.

        Returns waiting samples that turned out to be unable to finish under the cap; they left the queue.
        """
        del self._out[wave.number]
        self.durations.pace(len(wave.tickets), max(0.0, now - self._paced_from))
        self._paced_from = now
        if engine_s is None:
            return []
        self.durations.learn([ticket.shape for ticket in wave.tickets], engine_s)
        if self._cap_s is None:
            return []
        waiting = [t for line in self._lines.values() for t in line.tickets.values()]
        return [self._take(ticket) for ticket in waiting if self._hopeless(ticket)]

    # ---- what can be seen

    @property
    def in_flight(self) -> int:
        return len(self._out)

    def oldest_age(self, now: float) -> float:
        """Seconds that the longest waiting batch has had samples in the queue; 0 when nothing waits."""
        return max((now - line.since for line in self._lines.values()), default=0.0)

    def waiting(self, batch: str) -> list[int]:
        line = self._lines.get(batch)
        return sorted(line.tickets) if line else []

    # ---- inside

    def _hopeless(self, ticket: Ticket) -> bool:
        expected = self.durations.expected(ticket.shape)
        return self._cap_s is not None and expected is not None and expected > self._cap_s

    def _candidates(self, head: Ticket) -> Iterator[Ticket]:
        """Ready samples that may share the head's wave: its own batch first, then one of each other batch in turn."""
        own = self._lines[head.batch]
        yield from (own.tickets[i] for i in own.ready[1:LOOKAHEAD] if own.tickets[i].key == head.key)
        budget = LOOKAHEAD
        nearest = islice(self._lines.items(), LOOKAHEAD + 1)
        turns = [(line, iter(line.ready[:LOOKAHEAD])) for name, line in nearest if name != head.batch]
        while turns:
            rest = []
            for line, indexes in turns:
                for index in indexes:
                    if budget == 0:
                        return
                    budget -= 1
                    if line.tickets[index].key == head.key:
                        yield line.tickets[index]
                        rest.append((line, indexes))
                        break
            turns = rest

    def _take(self, ticket: Ticket) -> Ticket:
        line = self._lines[ticket.batch]
        del line.tickets[ticket.index]
        (line.ready if ticket.ready else line.unready).remove(ticket.index)
        self.depth -= 1
        if not line.tickets:
            del self._lines[ticket.batch]
        return ticket
