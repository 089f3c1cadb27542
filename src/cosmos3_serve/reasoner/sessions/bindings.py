"""The rows of the session table: who holds a session, where it counts as load, and when it is forgotten."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef
from cosmos3_serve.reasoner.sessions.idle import IdleQueue
from cosmos3_serve.reasoner.sessions.messages import HASH_TERM, Touch

MAX_COUNTED_REPLICAS = 1024


@dataclass(slots=True)
class Entry:
    """One session. `home` is where a replica accepted it, `pending` where a request is on its way to be accepted."""

    key: str
    ended_at: float
    home: ReplicaRef | None = None
    term: int = HASH_TERM
    pending: ReplicaRef | None = None
    pending_term: int = HASH_TERM
    holders: dict[str, tuple[int, int]] = field(default_factory=dict)  # gateway -> (live requests, seq of that report)
    counted_on: str | None = None

    def live(self) -> int:
        return sum(count for count, _ in self.holders.values())

    def idle_s(self, now: float) -> float:
        """0 while a request is in flight."""
        return 0.0 if self.holders else max(0.0, now - self.ended_at)

    def as_touch(self, now: float) -> Touch | None:
        return None if self.home is None else Touch(self.key, self.home, self.term, self.idle_s(now))


@dataclass(slots=True)
class Gateway:
    """A gateway as the table knows it: when it was heard, its last report, the sessions it has requests of, and the
    answers it waits for per replica, as of `loads_at`."""

    name: str
    heard_at: float
    flushed: int = 0
    keys: set[str] = field(default_factory=set)
    loads: Mapping[ReplicaRef, int] = field(default_factory=dict)
    loads_at: float = float("-inf")


class Bindings:
    """At most `max_sessions` entries; an entry with requests in flight is never forgotten.

    After changing an entry call `settle`, which keeps load, idleness and the entry's right to exist in step with it.
    """

    def __init__(self, *, ttl_s: float, max_sessions: int) -> None:
        self._ttl_s, self._max = ttl_s, max_sessions
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []  # of the entries, sorted, so that a page is found without looking at all
        self._idle = IdleQueue()
        self.gateways: dict[str, Gateway] = {}
        self.load: Counter[str] = Counter()
        self.expired: Counter[str] = Counter()
        self.evicted: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def current(self, key: str, now: float) -> Entry | None:
        """The entry, which is forgotten here if its time is over."""
        entry = self._entries.get(key)
        if entry is not None and self._over(entry, now):
            self._forget(entry, self.expired)
            return None
        return entry

    def look(self, key: str, now: float) -> Entry | None:
        """As `current`, changing nothing."""
        entry = self._entries.get(key)
        return None if entry is None or self._over(entry, now) else entry

    def insert(self, key: str, now: float) -> Entry | None:
        """A new entry, in the place of the longest idle one if need be; None if every entry is live."""
        if len(self._entries) >= self._max:
            oldest = self._idle.oldest()
            if oldest is None:
                return None
            self._forget(self._entries[oldest[1]], self.evicted)
        entry = self._entries[key] = Entry(key, ended_at=now)
        insort(self._keys, key)
        return entry

    def page(self, owner: str, after: str, limit: int, now: float) -> tuple[list[Entry], bool]:
        """At most `limit` entries whose keys begin with `owner` and come after `after`, and whether there are more."""
        found: list[Entry] = []
        at = max(bisect_left(self._keys, owner), bisect_right(self._keys, after))
        while at < len(self._keys) and self._keys[at].startswith(owner):
            if (entry := self.look(self._keys[at], now)) is not None:
                if len(found) == limit:
                    return found, True
                found.append(entry)
            at += 1
        return found, False

    def hold(self, entry: Entry, gateway: Gateway, count: int, seq: int) -> None:
        """Set how many requests of a session one gateway has, unless a later message has said so already."""
        if seq < entry.holders.get(gateway.name, (0, 0))[1]:
            return
        if count:
            entry.holders[gateway.name] = (count, seq)
            gateway.keys.add(entry.key)
        else:
            entry.holders.pop(gateway.name, None)
            gateway.keys.discard(entry.key)

    def settle(self, entry: Entry) -> None:
        if not entry.holders:
            entry.pending = None
        place = entry.pending or entry.home
        counted = place.id if entry.holders and place is not None else None
        if counted != entry.counted_on:
            for replica, step in ((entry.counted_on, -1), (counted, 1)):
                if replica is not None:
                    self.load[replica] += step
                    if not self.load[replica]:
                        del self.load[replica]
            entry.counted_on = counted
        if entry.holders:
            self._idle.take(entry.key)
        elif entry.home is None:
            self._drop(entry.key)
        else:
            self._idle.park(entry.key, entry.ended_at)

    def sweep(self, now: float, limit: int) -> None:
        """Forget at most `limit` expired entries."""
        for _ in range(limit):
            oldest = self._idle.oldest()
            if oldest is None or now - oldest[0] < self._ttl_s:
                return
            self._forget(self._entries[oldest[1]], self.expired)

    # ---- gateways ---------------------------------------------------------------------------------------------------

    def hear(self, name: str, now: float) -> Gateway:
        gateway = self.gateways.setdefault(name, Gateway(name, now))
        gateway.heard_at = now
        return gateway

    def others(self, asking: Gateway, now: float, max_age_s: float) -> dict[ReplicaRef, int]:
        """Answers that all gateways but the asking one wait for, without reports that are too old."""
        found: Counter[ReplicaRef] = Counter()
        for gateway in self.gateways.values():
            if gateway is not asking and now - gateway.loads_at < max_age_s:
                found.update(gateway.loads)
        return dict(found)

    def reconcile(self, gateway: Gateway, live: dict[str, int], seq: int) -> None:
        """`live` is every session the gateway has requests of: what it holds beyond that has ended."""
        for key in gateway.keys | live.keys():
            if entry := self._entries.get(key):
                self.hold(entry, gateway, live.get(key, 0), seq)
                self.settle(entry)

    def drop_silent(self, now: float, timeout_s: float) -> None:
        """Requests of a gateway that went silent ended when it was last heard of, as far as anybody knows."""
        for gateway in [g for g in self.gateways.values() if now - g.heard_at >= timeout_s]:
            del self.gateways[gateway.name]
            for key in gateway.keys:
                entry = self._entries[key]
                entry.holders.pop(gateway.name, None)
                entry.ended_at = max(entry.ended_at, gateway.heard_at)
                self.settle(entry)

    # ---- forgetting -------------------------------------------------------------------------------------------------

    def _over(self, entry: Entry, now: float) -> bool:
        return not entry.holders and now - entry.ended_at >= self._ttl_s

    def _forget(self, entry: Entry, counter: Counter[str]) -> None:
        self._drop(entry.key)
        self._idle.take(entry.key)
        if entry.home is not None:
            counter[entry.home.id] += 1
            # Replica ids come and go for months; the counter of the longest known one makes room.
            while len(counter) > MAX_COUNTED_REPLICAS:
                del counter[next(iter(counter))]

    def _drop(self, key: str) -> None:
        del self._entries[key]
        del self._keys[bisect_left(self._keys, key)]
