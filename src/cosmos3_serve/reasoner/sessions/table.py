"""The session table: which replica a session lives on. One owner holds it; gateways ask only for what they don't know.

A session is reserved when a request is sent, and bound when a replica has accepted it; a reservation counts as load
and vanishes when the replica refuses, at the latest with its last request. Ten first questions of one session share
one reservation. A binding is forgotten `ttl_s` after the end of the session's last request, never while a request is
in flight. When the table is full, the longest idle binding goes; when all are live, the request is served without one.

Load is the number of live sessions, those with a request in flight or on its way. Sessions that are only remembered
do not count: a replica that joins an old fleet gets its turn like the others, not everything until it has caught up.
"""

from __future__ import annotations

from dataclasses import replace

from cosmos3_serve.reasoner.fleet.replicas import Fleet, ReplicaRef
from cosmos3_serve.reasoner.fleet.updates import Update, UpdateKind, UpdateLog
from cosmos3_serve.reasoner.sessions.bindings import Bindings, Entry
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
from cosmos3_serve.reasoner.sessions.placement import RoundRobin, rendezvous
from cosmos3_serve.reasoner.sessions.policy import AffinityRules, Course, Outcome, course
from cosmos3_serve.reasoner.sessions.suspects import SuspectTracker

NEWS_LIMIT = 500
SWEEP_LIMIT = 500


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
        grant = self._decide(message.key, entry, message.fleet, message.refused, now)
        if grant.replica is None:
            return grant
        if entry is None:
            entry = self._bindings.insert(message.key, now)
        if entry is None:
            self._overflow += 1
            # Without an entry, concurrent requests of the session agree by hash.
            alone = rendezvous(message.key, message.fleet.ready(message.refused))
            return Grant(self.generation, alone, Outcome.NONE, Course.PLACE)
        if grant.why in (Course.PLACE, Course.FOLLOW):
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
            self._bindings.reconcile(gateway, dict(message.live), message.seq)
        self._learn_media(message, now)
        self.sweep(now)
        rows, version, gap = self._updates.since(message.seen, NEWS_LIMIT)
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
        entry = self._bindings.look(message.key, now)
        would = self._decide(message.key, entry, message.fleet, frozenset(), now, dry=True)
        if entry is None:
            return SessionView(None, None, HASH_TERM, 0, 0.0, would)
        return SessionView(entry.home, entry.pending, entry.term, entry.live(), entry.idle_s(now), would)

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
        self,
        key: str,
        entry: Entry | None,
        fleet: Fleet,
        refused: frozenset[ReplicaRef],
        now: float,
        *,
        dry: bool = False,
    ) -> Grant:
        home = None if entry is None else entry.home
        why = course(home, fleet, mode=self.rules.mode, refused=refused)
        if entry is not None and entry.pending is not None and why in (Course.PLACE, Course.FOLLOW):
            # Somebody's request is already on its way to a new home: everybody follows it.
            on_its_way = course(entry.pending, fleet, mode=self.rules.mode, refused=refused)
            if on_its_way in (Course.STAY, Course.SPILL, Course.BUSY):
                outcome = Outcome.HIT if home is None else Outcome.MOVED
                there = Grant(self.generation, None, outcome, on_its_way, entry.pending, entry.pending_term)
                return self._at_home(there, fleet, refused, dry)
        if why is Course.PLACE or entry is None or home is None:
            return self._place(key, home, fleet.homes(refused), now, dry)
        if why is Course.FOLLOW:
            again = ReplicaRef(home.id, fleet.replicas[home.id].incarnation)
            return Grant(self.generation, again, Outcome.MOVED, why, again, self._next_term(dry))
        known = Grant(self.generation, None, Outcome.HIT, why, home, entry.term, bound=True, idle_s=entry.idle_s(now))
        return self._at_home(known, fleet, refused, dry)

    def _at_home(self, grant: Grant, fleet: Fleet, refused: frozenset[ReplicaRef], dry: bool) -> Grant:
        """Fill in the replica of a session that has a place: that place, another for this request only, or none."""
        if grant.why is Course.STAY:
            return replace(grant, replica=grant.home)
        if grant.why is Course.SPILL:
            others = [ref for ref in fleet.ready(refused) if ref != grant.home]
            other = self._spill_turn.peek(others) if dry else self._spill_turn.next(others)
            return replace(grant, replica=other, outcome=Outcome.SPILLED)
        return replace(grant, outcome=Outcome.NONE)

    def _place(self, key: str, home: ReplicaRef | None, ready: list[ReplicaRef], now: float, dry: bool) -> Grant:
        outcome = Outcome.NEW if home is None else Outcome.MOVED
        if now < self._recover_until:
            chosen = rendezvous(key, ready)
            # What had a home was reported by a gateway, and its next home must win over that report.
            term = HASH_TERM if home is None else self._next_term(dry)
        else:
            load = self._bindings.load
            chosen = self._turn.peek(ready, load) if dry else self._turn.next(ready, load)
            term = self._next_term(dry)
        return Grant(self.generation, chosen, outcome, Course.PLACE, chosen, term)

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

    def _learn_media(self, message: Flush, now: float) -> None:
        for media in message.proofs:
            if self._suspects.on_answered(media):
                self._updates.append(Update(UpdateKind.PROVEN, media))
        self._suspects.take_proofs(len(message.proofs))  # the news carry them; nobody else asks
        for report in message.crashes:
            self._suspects.on_report(report, now)
        for media in self._suspects.settle(now):
            self._updates.append(Update(UpdateKind.QUARANTINED, media))
