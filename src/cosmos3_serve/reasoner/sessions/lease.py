"""A gateway's copy of the session table: known sessions are looked up here, and the table is told in batches.

A lease is used without asking while the session is surely alive: a request of it is in flight here, or its last one
ended less than the TTL minus a margin ago. In the margin the table is asked, so that a hit taken here is always
reported before the table could forget the session. What other gateways bind arrives with the answers to reports.

A table with a new generation has lost everything: it is told all leases, and answers with the homes that count. While
the table is away, leases stay valid; the router places unknown sessions by hash and they are told later.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cosmos3_serve.reasoner.fleet.replicas import Fleet, ReplicaRef
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
    """

    def __init__(self, gateway: str, port: SessionTablePort, rules: AffinityRules, suspects: SuspectTracker) -> None:
        self.gateway, self.port, self.rules = gateway, port, rules
        self._suspects = suspects
        self._leases: OrderedDict[str, Lease] = OrderedDict()  # least recently used first
        self._live: Counter[str] = Counter()
        self._dirty: OrderedDict[str, None] = OrderedDict()
        self._refusals: list[tuple[str, ReplicaRef]] = []
        self._generation = ""
        self._seq = 0
        self._seen = 0
        self._flushed_at = float("-inf")
        self._retry_at = float("-inf")
        self._flushing = False
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
        """The table did not answer a moment ago: not asked again before a retry is due."""
        return now < self._retry_at

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

    async def acquire(self, key: str, fleet: Fleet, refused: frozenset[ReplicaRef], now: float) -> Grant:
        """Ask the table for a place; call between `begin` and `end`.

        Raises:
            TableAway: decide alone.
        """
        if self.away(now):
            raise TableAway
        known = self._as_touch(key, now, busy=self._live[key] > 1)  # the asking request itself keeps nothing alive
        message = Acquire(self.gateway, self._next_seq(), key, self._live[key], fleet, refused, known)
        try:
            grant = await self.port.acquire(message)
        except TableAway:
            self._retry_at = now + self.rules.flush_interval_s
            raise
        self._see(grant.generation)
        if grant.bound and grant.home is not None:
            self._learn(Touch(key, grant.home, grant.term, grant.idle_s), now)
        return grant

    # ---- reports ----------------------------------------------------------------------------------------------------

    def due(self, now: float) -> bool:
        """Whether `flush` should be called now. It also is the heartbeat, due even with nothing to say."""
        if self._flushing or self.away(now):
            return False
        waited = now - self._flushed_at >= self.rules.flush_interval_s
        return waited or self._urgent or bool(self._refusals) or len(self._dirty) >= TOUCH_LIMIT

    async def flush(self, now: float) -> bool:
        """Report to the table and take over what it knows. One at a time; a report that fails is repeated.

        Returns:
            Whether the table answered.
        """
        if self._flushing:
            return False
        self._flushing, self._urgent = True, False
        taken = self._touches(now)
        refusals, self._refusals = self._refusals, []
        proofs, crashes = self._suspects.take_proofs(TOUCH_LIMIT), self._suspects.take_reports()
        answered = False
        try:
            reply = await self.port.flush(
                Flush(
                    self.gateway, self._next_seq(), dict(self._live), tuple(taken), tuple(refusals), self._seen,
                    tuple(proofs), tuple(crashes),
                )
            )  # fmt: skip
            answered = True
        except TableAway:
            self._retry_at = now + self.rules.flush_interval_s
            return False
        finally:
            self._flushing = False
            if not answered:
                self._dirty.update(dict.fromkeys(t.key for t in taken if t.key in self._leases))
                self._refusals[:0] = refusals
                self._suspects.give_back(proofs, crashes)
        self._flushed_at, self._retry_at = now, float("-inf")
        self._take_over(reply, now)
        return True

    def _touches(self, now: float) -> list[Touch]:
        touches: list[Touch] = []
        while self._dirty and len(touches) < TOUCH_LIMIT:
            key, _ = self._dirty.popitem(last=False)
            if touch := self._as_touch(key, now, busy=self._live[key] > 0):
                touches.append(touch)
        return touches

    def _as_touch(self, key: str, now: float, *, busy: bool) -> Touch | None:
        lease = self._leases.get(key)
        if lease is None:
            return None
        return Touch(key, lease.home, lease.term, 0.0 if busy else max(0.0, now - lease.ended_at))

    def _take_over(self, reply: FlushReply, now: float) -> None:
        known = self._see(reply.generation)
        for touch in (*reply.updates, *reply.corrections):
            self._learn(touch, now)
        self._suspects.learn(proven=reply.proven, quarantined=reply.quarantined, now=now)
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
