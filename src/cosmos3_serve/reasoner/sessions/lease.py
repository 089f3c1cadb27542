"""A gateway's copy of the session table: known sessions are looked up here, and the table is told in batches.

A lease is used without asking while the session is surely alive: a request of it is in flight here, or its last one
ended less than the TTL minus a margin ago. In the margin the table is asked, so that a hit taken here is always
reported before the table could forget the session. What other gateways bind arrives with the answers to reports.

A table with a new generation has lost everything: it is told all leases, and answers with the homes that count. While
the table is away, leases stay valid; the router places unknown sessions by hash and they are told later.

One call that fails, or a report that takes long, means away for every request: none waits for the table again until a
report was answered. Reports are tried again after a pause that doubles up to a bound and runs from the end of the
failed call, since a call that hangs takes longer than the pause.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from cosmos3_serve.reasoner.fleet.health import HealthBook
from cosmos3_serve.reasoner.fleet.replicas import Fleet, ReplicaRef
from cosmos3_serve.reasoner.sessions.decide import NO_REFUSALS, Refusals
from cosmos3_serve.reasoner.sessions.messages import (
    Acquire,
    Flush,
    FlushReply,
    Grant,
    SessionTablePort,
    TableAway,
    Touch,
)
from cosmos3_serve.reasoner.sessions.policy import AffinityRules
from cosmos3_serve.reasoner.sessions.suspects import SuspectTracker

TOUCH_LIMIT = 500
SLOW_S = 0.3  # a report that takes longer: the table is away until it answers
MAX_BACKOFF = 4  # flush intervals


@dataclass(slots=True)
class Lease:
    """Where a replica has accepted a session; `ended_at` by this gateway's clock."""

    home: ReplicaRef
    term: int
    ended_at: float


class LeaseCache:
    """
    Args:
        gateway: unlike that of any other gateway process, earlier ones included.
        port: the table; may be away at any time.
        rules: shared with the table. No more leases than the table has sessions are kept.
        suspects: its proofs and reports travel with the flushes.
        health: its share of the load does too, and learns that of the others.
        clock: seconds, the one of every `now`.
    """

    def __init__(
        self,
        gateway: str,
        port: SessionTablePort,
        rules: AffinityRules,
        suspects: SuspectTracker,
        health: HealthBook,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.gateway, self.port, self.rules = gateway, port, rules
        self._suspects, self._health, self._clock = suspects, health, clock
        self._leases: OrderedDict[str, Lease] = OrderedDict()  # least recently used first
        self._live: Counter[str] = Counter()
        self._dirty: OrderedDict[str, None] = OrderedDict()
        self._refusals: list[tuple[str, ReplicaRef]] = []
        self._generation = ""
        self._seq = 0
        self._seen = 0
        self._flushed_at = float("-inf")
        self._retry_at = float("-inf")
        self._failures = 0
        self._away = False
        self._flushing_since: float | None = None
        self._urgent = False
        self.expired: Mapping[str, int] = {}  # the table's count, as of the last report

    def __len__(self) -> int:
        return len(self._leases)

    # ---- looked up --------------------------------------------------------------------------------------------------

    def lookup(self, key: str, now: float, *, sure: bool = True) -> Lease | None:
        """The lease if the session is alive: surely so, or (`sure` False) as far as this gateway knows. Call it before
        `begin`: a request keeps its session alive, not its own lookup."""
        lease = self._leases.get(key)
        if lease is None or self._live[key]:
            return lease
        left = self.rules.ttl_s - (now - lease.ended_at)
        return lease if left > (self.rules.margin_s if sure else 0.0) else None

    def live(self, key: str) -> int:
        """Requests of this session in flight here."""
        return self._live[key]

    def away(self, now: float) -> bool:
        """The table did not answer the last call, or takes long over a report: no request waits for it."""
        since = self._flushing_since
        return self._away or (since is not None and now - since >= SLOW_S)

    # ---- requests ---------------------------------------------------------------------------------------------------

    def begin(self, key: str) -> None:
        """A request of this session starts; `end` must follow."""
        self._live[key] += 1

    def hit(self, key: str) -> None:
        """The request goes where the lease says: the table learns that the session is busy."""
        self._leases.move_to_end(key)
        self._dirty[key] = None

    def end(self, key: str, now: float, *, accepted: bool) -> None:
        """The request is over; only one that a replica accepted keeps the session alive from now on."""
        self._live[key] -= 1
        if self._live[key] <= 0:
            del self._live[key]
        lease = self._leases.get(key)
        if accepted and lease is not None:
            lease.ended_at = max(lease.ended_at, now)
            self._leases.move_to_end(key)
            self._dirty[key] = None

    def on_accepted(self, key: str, home: ReplicaRef, term: int, now: float) -> None:
        """A replica accepted the session's first request there: from here on the session is bound."""
        self._learn(Touch(key, home, term, 0.0), now)
        if key in self._leases:
            self.hit(key)

    def on_refused(self, key: str, replica: ReplicaRef) -> None:
        """The reservation there is void; the next flush is due at once."""
        if len(self._refusals) < TOUCH_LIMIT:
            self._refusals.append((key, replica))

    async def acquire(
        self, key: str, fleet: Fleet, now: float, *, refused: Refusals = NO_REFUSALS, n: int = 1
    ) -> Grant:
        """Ask the table for a place; call between `begin` and `end`.

        Raises:
            TableAway: decide alone.
        """
        if self.away(now):
            raise TableAway
        known = self.known(key, now, asking=1)  # the asking request itself keeps nothing alive
        ages = {ref: until - now for ref, until in refused.items() if now < until}
        message = Acquire(self.gateway, self._next_seq(), key, self._live[key], fleet, ages, known, n)
        try:
            grant = await self.port.acquire(message)
        except TableAway:
            if not self._away:  # else another call has said so already
                self._lost()
            raise
        self._see(grant.generation)
        if grant.bound and grant.home is not None:
            self._learn(Touch(key, grant.home, grant.term, grant.idle_s), now)
        return grant

    # ---- reports ----------------------------------------------------------------------------------------------------

    def due(self, now: float) -> bool:
        """Whether `flush` should be called now. It also is the heartbeat, due even with nothing to say."""
        if self._flushing_since is not None or now < self._retry_at:
            return False
        waited = now - self._flushed_at >= self.rules.flush_interval_s
        return waited or self._away or self._urgent or bool(self._refusals) or len(self._dirty) >= TOUCH_LIMIT

    async def flush(self, now: float) -> bool:
        """Report to the table and take over what it knows. One at a time; a report that fails is repeated.

        Returns:
            Whether the table answered.
        """
        if self._flushing_since is not None:
            return False
        self._flushing_since, self._urgent = now, False
        taken = self._touches(now)
        refusals, self._refusals = self._refusals, []
        proofs, crashes = self._suspects.take_proofs(TOUCH_LIMIT), self._suspects.take_reports()
        answered = False
        try:
            reply = await self.port.flush(
                Flush(
                    self.gateway, self._next_seq(), dict(self._live), tuple(taken), tuple(refusals), self._seen,
                    tuple(proofs), tuple(crashes), self._health.in_flight(),
                )
            )  # fmt: skip
            answered = True
        except TableAway:
            self._lost()
            return False
        finally:
            self._flushing_since = None
            if not answered:
                self._dirty.update(dict.fromkeys(t.key for t in taken if t.key in self._leases))
                self._refusals[:0] = refusals
                self._suspects.give_back(proofs, crashes)
        self._flushed_at, self._retry_at = now, float("-inf")
        self._away, self._failures = False, 0
        self._take_over(reply, now)
        return True

    def _lost(self) -> None:
        self._away = True
        pause = min(2**self._failures, MAX_BACKOFF) * self.rules.flush_interval_s
        self._failures = min(self._failures + 1, MAX_BACKOFF)
        self._retry_at = self._clock() + pause

    def _touches(self, now: float) -> list[Touch]:
        touches: list[Touch] = []
        while self._dirty and len(touches) < TOUCH_LIMIT:
            key, _ = self._dirty.popitem(last=False)
            if touch := self._as_touch(key, now, busy=self._live[key] > 0):
                touches.append(touch)
        return touches

    def known(self, key: str, now: float, *, asking: int = 0) -> Touch | None:
        """The lease for the table, which may not have heard of it yet; `asking` requests keep nothing alive."""
        return self._as_touch(key, now, busy=self._live[key] > asking)

    def _as_touch(self, key: str, now: float, *, busy: bool) -> Touch | None:
        lease = self._leases.get(key)
        if lease is None:
            return None
        return Touch(key, lease.home, lease.term, 0.0 if busy else max(0.0, now - lease.ended_at))

    def _take_over(self, reply: FlushReply, now: float) -> None:
        known = self._see(reply.generation)
        for touch in (*reply.updates, *reply.corrections):
            self._learn(touch, now)
        self._suspects.learn(proven=reply.proven, quarantined=reply.quarantined, suspected=reply.suspected, now=now)
        self._health.on_others(reply.others, self._clock())
        if reply.gap and known:
            self._tell_all()
        self._seen = reply.version
        self._urgent |= reply.more
        self.expired = reply.expired
        self._drop_expired(now)

    def _see(self, generation: str) -> bool:
        """Note the table's generation; False if it is a new table, which is then told everything."""
        if generation == self._generation:
            return True
        self._generation, self._seen = generation, 0
        self._tell_all()
        return False

    def _tell_all(self) -> None:
        self._dirty.update(dict.fromkeys(self._leases))
        self._urgent = bool(self._dirty)

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    # ---- bounds -----------------------------------------------------------------------------------------------------

    def _learn(self, touch: Touch, now: float) -> None:
        """Take over a home, unless the lease here is alive and of a higher term: then the table is told of it again."""
        lease = self._leases.get(touch.key)
        ended_at = now - touch.idle_s
        if lease is not None and now - lease.ended_at < self.rules.ttl_s:
            if touch.term < lease.term:
                self._dirty[touch.key] = None
                return
            ended_at = max(ended_at, lease.ended_at)
        self._store(touch.key, Lease(touch.home, touch.term, ended_at))

    def _store(self, key: str, lease: Lease) -> None:
        if key not in self._leases and len(self._leases) >= self.rules.max_sessions:
            spare = next(self._spare(), None)
            if spare is None:
                return  # all are busy or untold: the table is asked for this session each time
            del self._leases[spare]
        self._leases[key] = lease
        self._leases.move_to_end(key)

    def _spare(self) -> Iterator[str]:
        return (key for key in self._leases if not self._live[key] and key not in self._dirty)

    def _drop_expired(self, now: float) -> None:
        """From the least recently used on; stops at the first that is alive or still to be told."""
        while self._leases:
            key, lease = next(iter(self._leases.items()))
            if self._live[key] or key in self._dirty or now - lease.ended_at < self.rules.ttl_s:
                return
            del self._leases[key]
