"""Which requests, and which media, may have killed a replica.

Suspicion goes by items: the digest of a request's whole body, and the content hash of each of its media. What some
replica has answered is proven and never suspected. When a replica dies, every unproven item aboard is held: no gateway
sends it again until the verdict. An item is quarantined when an engine died with it alone aboard for the second time,
or, where it never travels alone, when it was aboard at more deaths than anything else that was. An item that merely
travelled with a killer is never quarantined for it, and suspicion ages.

Only the death of an engine under a living replica counts, which the replica itself reports (`on_engine_ended`): a
machine that is lost takes its requests along without any fault of theirs.

Aboard means on that replica through any gateway, so the table's owner judges: gateways report what they had aboard
(`take_reports`), reports on one death are merged while it settles, and the verdict travels back (`learn`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef

K = TypeVar("K")
V = TypeVar("V")

HOLD_S = 5.0  # longer than reports on a death take to be judged
HOLD_AGAIN_S = 60.0  # for what was aboard at an earlier death as well
MAX_REPORTS = 1024


class Aboard(NamedTuple):
    """One request on a replica: the digest of its body (empty if it is proven or not told), hashes of its media."""

    digest: str
    media: tuple[str, ...] = ()


class CrashReport(NamedTuple):
    """One gateway's account of a replica's death: the requests it had there, their unproven items only."""

    ref: ReplicaRef
    requests: tuple[Aboard, ...]


@dataclass(slots=True)
class _Crash:
    at: float
    requests: set[Aboard] = field(default_factory=set)


class SuspectTracker:
    """
    Args:
        judge: decide on quarantine here (the table's owner, or a lone gateway); otherwise only report.
        settle_s: how long reports on one death are merged; longer than a flush takes.
        quarantine_s: how long an item stays quarantined.
        suspect_s: how long a death is remembered against an item.
        max_items: bound of each of the sets.
    """

    def __init__(
        self,
        *,
        judge: bool = True,
        settle_s: float = 3.0,
        quarantine_s: float = 3600.0,
        suspect_s: float = 3600.0,
        max_items: int = 65_536,
    ) -> None:
        self._judge, self._settle_s, self._max = judge, settle_s, max_items
        self._quarantine_s, self._suspect_s = quarantine_s, suspect_s
        self._proven: OrderedDict[str, None] = OrderedDict()
        self._suspects: OrderedDict[str, tuple[int, float]] = OrderedDict()  # item -> (deaths, when the last was)
        self._held: OrderedDict[str, float] = OrderedDict()
        self._quarantine: OrderedDict[str, float] = OrderedDict()
        self._crashes: OrderedDict[ReplicaRef, _Crash] = OrderedDict()
        self._settled: OrderedDict[ReplicaRef, None] = OrderedDict()
        self._ended: OrderedDict[ReplicaRef, None] = OrderedDict()
        self._aboard: dict[ReplicaRef, Counter[Aboard]] = {}
        self._fresh_proofs: OrderedDict[str, None] = OrderedDict()
        self._reports: list[CrashReport] = []

    # ---- what requests carry ----------------------------------------------------------------------------------------

    def board(self, ref: ReplicaRef, request: Aboard) -> None:
        """This request was sent to `ref`; `leave` must follow."""
        self._aboard.setdefault(ref, Counter())[request] += 1

    def leave(self, ref: ReplicaRef, request: Aboard) -> None:
        aboard = self._aboard.get(ref)
        if aboard is None:
            return
        aboard[request] -= 1
        if aboard[request] <= 0:
            del aboard[request]
        if not aboard:
            del self._aboard[ref]

    def proven(self, item: str) -> bool:
        return item in self._proven

    def on_answered(self, item: str) -> bool:
        """A replica answered with this media item; True if that is news."""
        news = item not in self._proven
        self._prove(item)
        if news:
            _remember(self._fresh_proofs, item, None, self._max)
        return news

    def on_completed(self, digest: str) -> None:
        """A replica answered this request to its end. Only what clears a suspicion is told to others: every question
        has a digest of its own."""
        suspected = self.suspect(digest)
        self._prove(digest)
        if suspected:
            _remember(self._fresh_proofs, digest, None, self._max)

    def on_died(self, ref: ReplicaRef, now: float) -> None:
        """`ref` died; called once or for each request that it took along."""
        requests = tuple(sorted(self._unproven(self._aboard.get(ref, ()))))
        if not requests:
            return
        self.on_report(CrashReport(ref, requests), now)
        if not self._judge and len(self._reports) < MAX_REPORTS:
            self._reports.append(CrashReport(ref, requests))

    # ---- verdicts ---------------------------------------------------------------------------------------------------

    def on_report(self, report: CrashReport, now: float) -> dict[str, float]:
        """A gateway's account of a death; a late one, after the verdict, holds its items and condemns none.

        Returns:
            Items held because of it, and until when.
        """
        requests = self._unproven(report.requests)
        if self._judge and report.ref not in self._settled:
            self._crashes.setdefault(report.ref, _Crash(now)).requests.update(requests)
        held = {}
        for item in _items(requests):
            until = now + (HOLD_AGAIN_S if item in self._suspects else HOLD_S)
            if until > self._held.get(item, now):
                held[item] = until
                _remember(self._held, item, until, self._max)
        return held

    def on_engine_ended(self, ref: ReplicaRef) -> None:
        """The replica `ref` reports that its engine died, and that it lives itself."""
        _remember(self._ended, ref, None, MAX_REPORTS)

    def settle(self, now: float) -> list[str]:
        """Judge the deaths whose reports are in; returns what is newly quarantined."""
        while self._suspects and now - next(iter(self._suspects.values()))[1] >= self._suspect_s:
            self._suspects.popitem(last=False)
        guilty: list[str] = []
        for ref, crash in list(self._crashes.items()):
            if now - crash.at < self._settle_s:
                continue
            del self._crashes[ref]
            _remember(self._settled, ref, None, MAX_REPORTS)
            if ref not in self._ended:
                continue
            requests = self._unproven(crash.requests)
            found = [item for item in _items(requests) if self._guilty(item, requests)]
            for item in _items(requests):
                _remember(self._suspects, item, (self._deaths(item) + 1, now), self._max)
            self.learn(quarantined=found, now=now)
            guilty += found
        return guilty

    def suspect(self, item: str) -> bool:
        """Whether it was aboard at a death and nothing has cleared it yet."""
        return (
            item in self._suspects
            or item in self._held
            or any(item in _items(crash.requests) for crash in self._crashes.values())
        )

    def held(self, item: str, now: float) -> float:
        """Seconds for which it is not sent to a replica; 0: it may be."""
        until = self._held.get(item)
        if until is not None and now >= until + self._suspect_s:
            del self._held[item]
        return 0.0 if until is None else max(0.0, until - now)

    def quarantined(self, item: str, now: float) -> bool:
        until = self._quarantine.get(item)
        if until is not None and now >= until:
            del self._quarantine[item]
            return False
        return until is not None

    # ---- between gateways -------------------------------------------------------------------------------------------

    def take_proofs(self, limit: int) -> list[str]:
        """Items proven here since the last call."""
        return [self._fresh_proofs.popitem(last=False)[0] for _ in range(min(limit, len(self._fresh_proofs)))]

    def take_reports(self) -> list[CrashReport]:
        taken, self._reports = self._reports, []
        return taken

    def give_back(self, proofs: Sequence[str], reports: Sequence[CrashReport]) -> None:
        """What was taken did not arrive; it goes with the next flush."""
        for item in proofs:
            _remember(self._fresh_proofs, item, None, self._max)
        self._reports[:0] = reports
        del self._reports[MAX_REPORTS:]

    def learn(
        self,
        *,
        proven: Iterable[str] = (),
        quarantined: Iterable[str] = (),
        suspected: Iterable[tuple[str, float]] = (),
        now: float,
    ) -> None:
        """Take over what the table's owner knows; `suspected` with the seconds for which an item is held."""
        for item, left in suspected:
            if item not in self._proven:
                _remember(self._held, item, max(now + left, self._held.get(item, now)), self._max)
        for item in proven:
            self._prove(item)
        for item in quarantined:
            _remember(self._quarantine, item, now + self._quarantine_s, self._max)
            self._suspects.pop(item, None)
            self._held.pop(item, None)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _prove(self, item: str) -> None:
        _remember(self._proven, item, None, self._max)
        self._suspects.pop(item, None)
        self._held.pop(item, None)

    def _unproven(self, requests: Iterable[Aboard]) -> set[Aboard]:
        found = set()
        for digest, media in requests:
            left = Aboard(
                "" if digest in self._proven else digest, tuple(item for item in media if item not in self._proven)
            )
            if left.digest or left.media:
                found.add(left)
        return found

    def _deaths(self, item: str) -> int:
        return self._suspects.get(item, (0, 0.0))[0]

    def _guilty(self, item: str, requests: set[Aboard]) -> bool:
        """Whether this death, after earlier ones, can only be laid at the item's door. A request answers for its media,
        so those are no company for its digest."""
        company = {i for r in requests if r.digest != item and item not in r.media for i in _items([r])}
        company |= {i for r in requests if item in r.media for i in r.media if i != item}
        before = self._deaths(item)
        return before >= 1 and (not company or (before >= 2 and all(self._deaths(other) < before for other in company)))


def _items(requests: Iterable[Aboard]) -> list[str]:
    """Distinct, in a fixed order."""
    return sorted({item for digest, media in requests for item in (digest, *media) if item})


def _remember(table: OrderedDict[K, V], key: K, value: V, limit: int) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > limit:
        table.popitem(last=False)
