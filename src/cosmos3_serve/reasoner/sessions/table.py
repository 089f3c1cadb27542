"""The session table: which replica a session lives on. One owner holds it; gateways ask only for what they don't know.

A session is reserved when a request is sent, and bound when a replica has accepted it; a reservation counts as load
and vanishes when the replica refuses, at the latest with its last request. Ten first questions of one session share
one reservation. A binding is forgotten `ttl_s` after the end of the session's last request, never while a request is
in flight. When the table is full, the longest idle binding goes; when all are live, the request is served without one.

Load is the number of live sessions, those with a request in flight or on its way. Sessions that are only remembered
do not count: a replica that joins an old fleet gets its turn like the others, not everything until it has caught up.
"""

from __future__ import annotations

from cosmos3_serve.reasoner.fleet.replicas import Fleet, ReplicaRef
from cosmos3_serve.reasoner.fleet.updates import Update, UpdateKind, UpdateLog
from cosmos3_serve.reasoner.sessions.bindings import Bindings, Entry
from cosmos3_serve.reasoner.sessions.decide import NO_REFUSALS, Action, Choice, Refusals, decide, takers
from cosmos3_serve.reasoner.sessions.messages import (
    HASH_TERM,
    Acquire,
    Flush,
    FlushReply,
    Grant,
    PageAsk,
    Peek,
    SessionPage,
    SessionRow,
    SessionView,
    TableStats,
    Touch,
)
from cosmos3_serve.reasoner.sessions.placement import RoundRobin, rendezvous, settled
from cosmos3_serve.reasoner.sessions.policy import AffinityRules, Outcome
from cosmos3_serve.reasoner.sessions.suspects import SuspectTracker

UPDATE_LIMIT = 500
SWEEP_LIMIT = 500
LOADS_KEPT = 10  # flush intervals: a report of a gateway's load that is older does not count


class SessionTable:
    """
    Args:
        rules: shared with the gateways.
        generation: unlike that of any earlier table of this service; gateways report everything to a new one.
        recover_until: a table that replaces a lost one places by hash up to this time, as the gateways did in the
            meantime, so that no session gets a second home before its gateway has reported the first.
    """

    def __init__(self, rules: AffinityRules, generation: str, *, recover_until: float = 0.0) -> None:
        self.rules = rules
        self.generation = generation
        self._recover_until = recover_until
        self._bindings = Bindings(ttl_s=rules.ttl_s, max_sessions=rules.max_sessions)
        self._turn, self._spill_turn = RoundRobin(), RoundRobin()
        self._updates = UpdateLog()
        self._term = HASH_TERM
        self._overflow = 0
        self._suspects = SuspectTracker(settle_s=max(3.0, 4 * rules.flush_interval_s))

    def __len__(self) -> int:
        return len(self._bindings)

    # ---- asked by gateways ------------------------------------------------------------------------------------------

    def acquire(self, message: Acquire, now: float) -> Grant:
        """A place for one request. Reserves if the session has none, and never binds."""
        gateway = self._bindings.hear(message.gateway, now)
        if message.known is not None:
            self.adopt(message.known, now)
        entry = self._bindings.current(message.key, now)
        if entry is not None and entry.pending in message.refused:
            entry.pending = None
            self._bindings.settle(entry)  # before placing again: what was refused is no load
            entry = self._bindings.look(message.key, now)
        refused = {ref: now + left for ref, left in message.refused.items()}
        grant = self._decide(message.key, entry, message.fleet, refused, now, message.n)
        if grant.replica is None:
            return grant
        if entry is None:
            entry = self._bindings.insert(message.key, now)
        if entry is None:
            self._overflow += 1
            # Without an entry, concurrent requests of the session agree by hash.
            alone = rendezvous(message.key, takers(message.fleet, refused, now, message.n))
            return Grant(self.generation, alone, Outcome.NONE, Action.PLACE)
        if grant.why in (Action.PLACE, Action.FOLLOW):
            entry.pending, entry.pending_term = grant.home, grant.term
        self._bindings.hold(entry, gateway, message.live, message.seq)
        self._bindings.settle(entry)
        return grant

    def flush(self, message: Flush, now: float) -> FlushReply:
        """Take over a gateway's report; answers with what it does not know. A report that was overtaken by a later one
        of the same gateway changes no count."""
        gateway = self._bindings.hear(message.gateway, now)
        in_order = message.seq > gateway.flushed
        corrections = []
        for touch in message.touches:
            counts = self.adopt(touch, now)
            if counts is not None and in_order:
                self._bindings.hold(counts, gateway, message.live.get(touch.key, 0), message.seq)
                self._bindings.settle(counts)
            if counts is not None and counts.home != touch.home and (elsewhere := counts.as_touch(now)):
                corrections.append(elsewhere)
        for key, ref in message.refusals:
            if (entry := self._bindings.look(key, now)) and entry.pending == ref:
                entry.pending = None
                self._bindings.settle(entry)
        if in_order:
            gateway.flushed = message.seq
            gateway.loads, gateway.loads_at = message.in_flight, now
            self._bindings.reconcile(gateway, dict(message.live), message.seq)
        self._learn_suspects(message, now)
        self.sweep(now)
        rows, version, gap = self._updates.since(message.seen, UPDATE_LIMIT)
        homes = {n.subject: n for n in rows if n.kind is UpdateKind.LEASE}
        return FlushReply(
            generation=self.generation,
            version=version,
            corrections=tuple(corrections),
            updates=tuple(heard for n in homes.values() if (heard := self._as_heard(n, now))),
            gap=gap,
            more=version < self._updates.version,
            proven=tuple(n.subject for n in rows if n.kind is UpdateKind.PROVEN),
            quarantined=tuple(n.subject for n in rows if n.kind is UpdateKind.QUARANTINED),
            expired=dict(self._bindings.expired),
            others=self._bindings.others(gateway, now, LOADS_KEPT * self.rules.flush_interval_s),
            suspected=tuple((n.subject, n.at - now) for n in rows if n.kind is UpdateKind.SUSPECTED and n.at > now),
        )

    def adopt(self, touch: Touch, now: float) -> Entry | None:
        """Bind, refresh, or take over from a gateway what an earlier table knew; the higher term wins.

        Returns:
            The session's entry, None if it has expired or there is no room.
        """
        entry = self._bindings.current(touch.key, now)
        if entry is None and touch.idle_s < self.rules.ttl_s:
            entry = self._bindings.insert(touch.key, now - touch.idle_s)
        if entry is None:
            return None
        if touch.idle_s < self.rules.ttl_s and (entry.home is None or touch.term > entry.term):
            self._bind(entry, touch.home, touch.term, now)
        entry.ended_at = max(entry.ended_at, now - touch.idle_s)
        self._bindings.settle(entry)
        return entry

    def sweep(self, now: float) -> None:
        """Forget some of what has expired, and gateways that went silent. Called by every flush; bounded work."""
        self._bindings.drop_silent(now, self.rules.gateway_timeout_s)
        self._bindings.sweep(now, SWEEP_LIMIT)

    def peek(self, message: Peek, now: float) -> SessionView:
        """What `acquire` would do, without doing it."""
        entry = self._with(message.known, self._bindings.look(message.key, now), now)
        would = self._decide(message.key, entry, message.fleet, NO_REFUSALS, now, message.n, dry=True)
        if entry is None:
            return SessionView(None, None, HASH_TERM, 0, 0.0, would)
        return SessionView(entry.home, entry.pending, entry.term, entry.live(), entry.idle_s(now), would)

    def _with(self, known: Touch | None, entry: Entry | None, now: float) -> Entry | None:
        """The entry as `adopt` would leave it; a copy, where that changes anything."""
        if known is None or known.idle_s >= self.rules.ttl_s:
            return entry
        if entry is not None and entry.home is not None and known.term <= entry.term:
            return entry
        told = Entry(known.key, ended_at=now - known.idle_s, home=known.home, term=known.term)
        if entry is not None:
            told.ended_at, told.holders = max(told.ended_at, entry.ended_at), entry.holders
            if entry.pending_term > known.term and entry.pending != known.home:
                told.pending, told.pending_term = entry.pending, entry.pending_term
        return told

    def page(self, message: PageAsk, now: float) -> SessionPage:
        """One page of one owner's sessions. Changes nothing."""
        found, more = self._bindings.page(message.owner, message.after, message.limit, now)
        rows = tuple(SessionRow(e.key, e.home, e.pending, e.live(), e.idle_s(now)) for e in found)
        return SessionPage(rows, more, self.stats())

    def stats(self) -> TableStats:
        rows = self._bindings
        return TableStats(
            generation=self.generation,
            sessions=len(rows),
            live=dict(rows.load),
            expired=dict(rows.expired),
            evicted=dict(rows.evicted),
            overflow=self._overflow,
            gateways=len(rows.gateways),
        )

    # ---- the decision -----------------------------------------------------------------------------------------------

    def _decide(
        self, key: str, entry: Entry | None, fleet: Fleet, refused: Refusals, now: float, n: int, *, dry: bool = False
    ) -> Grant:
        home, pending = (None, None) if entry is None else (entry.home, entry.pending)
        choice = decide(home, pending, fleet, refused, now, n, mode=self.rules.mode)
        if choice.action is Action.PLACE or entry is None:
            return self._place(key, home, choice, now, dry)
        if choice.action is Action.FOLLOW:
            term = self._next_term(dry)
            return Grant(self.generation, choice.home, choice.outcome, choice.action, choice.home, term)
        replica = settled(choice, self._spill_turn, dry=dry)
        if choice.reserved:
            return Grant(self.generation, replica, choice.outcome, choice.action, choice.home, entry.pending_term)
        return Grant(
            self.generation, replica, choice.outcome, choice.action, choice.home, entry.term, True, entry.idle_s(now)
        )

    def _place(self, key: str, home: ReplicaRef | None, choice: Choice, now: float, dry: bool) -> Grant:
        if now < self._recover_until:
            chosen = rendezvous(key, choice.candidates)
            # What had a home was reported by a gateway, and its next home must win over that report.
            term = HASH_TERM if home is None else self._next_term(dry)
        else:
            load = self._bindings.load
            chosen = (self._turn.peek if dry else self._turn.next)(choice.candidates, load)
            term = self._next_term(dry)
        return Grant(self.generation, chosen, choice.outcome, Action.PLACE, chosen, term)

    def _next_term(self, dry: bool) -> int:
        if dry:
            return self._term + 1
        self._term += 1
        return self._term

    # ---- reports ----------------------------------------------------------------------------------------------------

    def _bind(self, entry: Entry, home: ReplicaRef, term: int, now: float) -> None:
        entry.home, entry.term = home, term
        self._term = max(self._term, term)
        if entry.pending_term <= term or entry.pending == home:
            entry.pending = None
        self._updates.append(Update(UpdateKind.LEASE, entry.key, home, term, now))

    def _as_heard(self, news: Update, now: float) -> Touch | None:
        entry = self._bindings.look(news.subject, now)
        if entry is not None:
            return entry.as_touch(now)
        idle_s = max(0.0, now - news.at)
        return None if news.home is None else Touch(news.subject, news.home, news.term, idle_s)

    def on_engine_ended(self, ref: ReplicaRef) -> None:
        """The replica itself says that its engine died under it. Without such a word a death is the machine's."""
        self._suspects.on_engine_ended(ref)

    def _learn_suspects(self, message: Flush, now: float) -> None:
        for item in message.proofs:
            if self._suspects.on_answered(item):
                self._updates.append(Update(UpdateKind.PROVEN, item))
        self._suspects.take_proofs(len(message.proofs))  # the updates carry them; nobody else asks
        for report in message.crashes:
            for item, until in self._suspects.on_report(report, now).items():
                self._updates.append(Update(UpdateKind.SUSPECTED, item, at=until))
        for item in self._suspects.settle(now):
            self._updates.append(Update(UpdateKind.QUARANTINED, item))
