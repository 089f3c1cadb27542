"""What becomes of one request: the one decision that the table, the router and the explain endpoint share. Pure.

| the home is                   | soft                          | hard                              |
|-------------------------------|-------------------------------|-----------------------------------|
| ready                         | STAY                          | STAY                              |
| saturated, or refused this one| SPILL (binding stays)         | BUSY (503, Retry-After)           |
| dead, draining, starting      | PLACE (moves)                 | LOST (503, Retry-After)           |
| restarted and ready           | FOLLOW (same id, cold caches) | FOLLOW                            |
| gone from the fleet           | PLACE (moves)                 | PLACE (moves)                     |
| none                          | PLACE (new)                   | PLACE (new)                       |

A refusal counts until the time at which it ends, also for the request that was refused. The same in words:
docs/contract.md 9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from cosmos3_serve.reasoner.fleet.replicas import Fleet, ReplicaRef, ReplicaState, ReplicaView
from cosmos3_serve.reasoner.sessions.policy import Mode, Outcome

Refusals = Mapping[ReplicaRef, float]  # replica -> the time at which its refusal of this request ends
NO_REFUSALS: Refusals = {}


class Action(StrEnum):
    STAY = "stay"
    FOLLOW = "follow"
    PLACE = "place"
    SPILL = "spill"
    BUSY = "busy"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Choice:
    """
    Args:
        home: where the session lives or will live; None where the chosen candidate becomes its home, or none can.
        candidates: replicas that may take the request, ordered by id. Empty: nobody takes it now.
        reserved: `home` is where another request of the session is on its way; nobody has accepted it there yet.
    """

    action: Action
    outcome: Outcome
    home: ReplicaRef | None
    candidates: tuple[ReplicaRef, ...]
    reserved: bool = False


def decide(
    home: ReplicaRef | None,
    pending: ReplicaRef | None,
    fleet: Fleet,
    refused: Refusals,
    now: float,
    n: int = 1,
    *,
    mode: Mode,
    binds: bool = True,
) -> Choice:
    """
    Args:
        home: where the session is bound; `pending`: where a request of it is on its way to be accepted.
        refused: by this very request; times and `now` are of one clock.
        n: answers that the request asks for.
        binds: whether the request belongs to a session.
    """
    if not binds:
        return Choice(Action.PLACE, Outcome.NONE, None, takers(fleet, refused, now, n))
    action = _at(home, fleet, refused, now, n, mode)
    if pending is not None and action in (Action.PLACE, Action.FOLLOW):
        # Somebody's request is already on its way to a new home: everybody follows it.
        there = _at(pending, fleet, refused, now, n, mode)
        if there in (Action.STAY, Action.SPILL, Action.BUSY):
            outcome = Outcome.HIT if home is None else Outcome.MOVED
            return _settled(there, outcome, pending, fleet, refused, now, n, reserved=True)
    if action is Action.PLACE or home is None:
        outcome = Outcome.NEW if home is None else Outcome.MOVED
        return Choice(Action.PLACE, outcome, None, _homes(fleet, takers(fleet, refused, now, n)))
    if action is Action.FOLLOW:
        again = ReplicaRef(home.id, fleet.replicas[home.id].incarnation)
        return Choice(action, Outcome.MOVED, again, (again,))
    return _settled(action, Outcome.HIT, home, fleet, refused, now, n)


def takers(fleet: Fleet, refused: Refusals, now: float, n: int = 1) -> tuple[ReplicaRef, ...]:
    """Replicas that take a request now. One that is being examined after a failure gets none while others are there."""
    found = sorted(
        ref
        for i, view in fleet.replicas.items()
        if _takes(view, n) and not _excluded(ref := ReplicaRef(i, view.incarnation), refused, now)
    )
    return tuple([ref for ref in found if not fleet.replicas[ref.id].examined] or found)


def _homes(fleet: Fleet, found: tuple[ReplicaRef, ...]) -> tuple[ReplicaRef, ...]:
    """Where a session may settle: with a replica that is about to leave only if nobody else takes it, or the session
    would move again."""
    return tuple(ref for ref in found if not fleet.replicas[ref.id].leaving) or found


def _settled(
    action: Action, outcome: Outcome, place: ReplicaRef, fleet: Fleet, refused: Refusals, now: float, n: int, *,
    reserved: bool = False,
) -> Choice:  # fmt: skip
    """For a session that has a place: that place, another one for this request only, or none."""
    if action is Action.STAY:
        return Choice(action, outcome, place, (place,), reserved)
    if action is Action.SPILL:
        others = tuple(ref for ref in takers(fleet, refused, now, n) if ref != place)
        return Choice(action, Outcome.SPILLED, place, others, reserved)
    return Choice(action, Outcome.NONE, place, (), reserved)


def _at(home: ReplicaRef | None, fleet: Fleet, refused: Refusals, now: float, n: int, mode: Mode) -> Action:
    """The table of this module, as code."""
    view = None if home is None else fleet.replicas.get(home.id)
    if home is None or view is None:
        return Action.PLACE
    life = ReplicaRef(home.id, view.incarnation)
    takes = _takes(view, n) and not _excluded(life, refused, now)
    if life != home and takes:
        return Action.FOLLOW
    if life == home and view.state in (ReplicaState.READY, ReplicaState.SATURATED):
        if takes:
            return Action.STAY
        return Action.SPILL if mode is Mode.SOFT else Action.BUSY
    return Action.PLACE if mode is Mode.SOFT else Action.LOST


def _takes(view: ReplicaView, n: int) -> bool:
    return view.state is ReplicaState.READY and (view.full_for is None or n < view.full_for)


def _excluded(ref: ReplicaRef, refused: Refusals, now: float) -> bool:
    return bool(refused) and now < refused.get(ref, float("-inf"))
