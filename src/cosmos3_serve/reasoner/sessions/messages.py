"""What gateways and the session table say to each other.

Times travel as ages (`idle_s`), never as clock readings: the two sides may be on machines whose clocks have nothing in
common. Counts travel as absolute numbers with a sequence number, never as differences: a message that is lost,
doubled or late cannot make them drift.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from cosmos3_serve.reasoner.fleet.replicas import Fleet, ReplicaRef
from cosmos3_serve.reasoner.sessions.decide import Action
from cosmos3_serve.reasoner.sessions.policy import Outcome
from cosmos3_serve.reasoner.sessions.suspects import CrashReport

# Terms order the homes of one session: the higher wins. The table counts up from 1; what was placed by hash while no
# table could be asked has term 0 and gives way to anything the table decided.
HASH_TERM = 0


class TableAway(Exception):
    """The table cannot be asked now (restarting, unreachable, too slow). Never leaves this package: the gateway decides
    alone and reconciles later."""


class Touch(NamedTuple):
    """A session that a replica has accepted, and when it was last busy (0: it is)."""

    key: str
    home: ReplicaRef
    term: int
    idle_s: float


@dataclass(frozen=True, slots=True)
class Acquire:
    """One request asks for a place: its session is unknown to the gateway, or has lost its home.

    Args:
        seq: this gateway's message number.
        key: digest of the session key.
        live: requests of this session at this gateway, this one included.
        fleet: replicas as this gateway sees them.
        refused: replicas that have refused or lost this very request, and for how many seconds that still counts.
        known: the gateway's lease, which the table may not have heard of yet.
        n: answers that the request asks for.
    """

    gateway: str
    seq: int
    key: str
    live: int
    fleet: Fleet
    refused: Mapping[ReplicaRef, float] = field(default_factory=dict)
    known: Touch | None = None
    n: int = 1


@dataclass(frozen=True, slots=True)
class Grant:
    """The table's answer: a replica, or (`replica` None) why none.

    Args:
        why: STAY, SPILL, PLACE or FOLLOW with a replica; BUSY or LOST as refusals of hard mode; PLACE or SPILL without
            a replica means that no replica takes requests now.
        home: where the session lives or will live once a replica accepted; None if it cannot be kept (table full).
        bound: `home` has accepted this session before.
        idle_s: age of the end of the session's last request.
    """

    generation: str
    replica: ReplicaRef | None
    outcome: Outcome
    why: Action
    home: ReplicaRef | None = None
    term: int = HASH_TERM
    bound: bool = False
    idle_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Flush:
    """A gateway's periodic report.

    Args:
        live: every session with requests at this gateway, with their number: the whole list, not changes.
        touches: sessions that changed since the last report.
        refusals: reservations that their replica refused.
        seen: version of the table's updates that this gateway has.
        in_flight: answers that this gateway waits for, per replica: the whole list.
    """

    gateway: str
    seq: int
    live: Mapping[str, int]
    touches: tuple[Touch, ...] = ()
    refusals: tuple[tuple[str, ReplicaRef], ...] = ()
    seen: int = 0
    proofs: tuple[str, ...] = ()
    crashes: tuple[CrashReport, ...] = ()
    in_flight: Mapping[ReplicaRef, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FlushReply:
    """
    Args:
        corrections: sessions of this flush that live elsewhere, with the home that counts.
        news: homes that changed since `seen`.
        version: what `seen` is now.
        gap: news were lost; the gateway reports all its leases again and is corrected where needed.
        more: there is more news than fits.
        expired: bindings forgotten by age, per replica id, over all gateways; for their exporters.
        others: answers that the other gateways wait for, per replica, as of their last reports.
        suspected: requests and media that a replica died on, and the seconds for which they are refused.
    """

    generation: str
    version: int
    corrections: tuple[Touch, ...] = ()
    updates: tuple[Touch, ...] = ()
    gap: bool = False
    more: bool = False
    proven: tuple[str, ...] = ()
    quarantined: tuple[str, ...] = ()
    expired: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[ReplicaRef, int] = field(default_factory=dict)
    suspected: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SessionView:
    """What the table knows of one session, for `explain`."""

    home: ReplicaRef | None
    pending: ReplicaRef | None
    term: int
    live: int
    idle_s: float
    would: Grant


@dataclass(frozen=True, slots=True)
class TableStats:
    """
    Args:
        sessions: bindings and reservations held.
        live: live sessions per replica id.
        expired, evicted: bindings forgotten per replica id, by age and for want of room.
        overflow: requests served without a binding because every held session was live.
    """

    generation: str
    sessions: int
    live: Mapping[str, int]
    expired: Mapping[str, int]
    evicted: Mapping[str, int]
    overflow: int
    gateways: int = 0


@dataclass(frozen=True, slots=True)
class PageAsk:
    """Sessions whose keys begin with `owner`, in the order of their keys, those after `after`; at most `limit`."""

    owner: str
    after: str = ""
    limit: int = 100


class SessionRow(NamedTuple):
    """One session as the table knows it: `live` requests at all gateways, `idle_s` 0 while there are any."""

    key: str
    home: ReplicaRef | None
    pending: ReplicaRef | None
    live: int
    idle_s: float


@dataclass(frozen=True, slots=True)
class SessionPage:
    """`stats` are those of the whole table at the same moment."""

    rows: tuple[SessionRow, ...]
    more: bool
    stats: TableStats


@dataclass(frozen=True, slots=True)
class Peek:
    """`Acquire`, told instead of taken."""

    key: str
    fleet: Fleet = field(default_factory=Fleet)
    n: int = 1
    known: Touch | None = None


class SessionTablePort(Protocol):
    """The table as a gateway reaches it. Every call is bounded in time by the implementation and raises TableAway."""

    async def acquire(self, message: Acquire) -> Grant: ...

    async def flush(self, message: Flush) -> FlushReply: ...

    async def peek(self, message: Peek) -> SessionView: ...

    async def page(self, message: PageAsk) -> SessionPage: ...

    async def stats(self) -> TableStats: ...
