"""Which media may have killed a replica.

Media that some replica has answered is proven. When a replica dies, every unproven item aboard becomes a suspect; it is
quarantined only if a later death finds a suspect aboard alone. An item that merely travelled with a killer is never
quarantined for it.

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


class CrashReport(NamedTuple):
    """One gateway's account of a replica's death: the unproven media it had there (content hashes)."""

    ref: ReplicaRef
    media: tuple[str, ...]


@dataclass(slots=True)
class _Crash:
    at: float
    media: set[str] = field(default_factory=set)


class SuspectTracker:
    """
    Args:
        judge: decide on quarantine here (the table's owner, or a lone gateway); otherwise only report.
        settle_s: how long reports on one death are merged; longer than a flush takes.
        quarantine_s: how long an item stays quarantined.
        max_items: bound of each of the sets.
    """

    def __init__(
        self, *, judge: bool = True, settle_s: float = 3.0, quarantine_s: float = 3600.0, max_items: int = 65_536
    ) -> None:
        self._judge, self._settle_s, self._quarantine_s, self._max = judge, settle_s, quarantine_s, max_items
        self._proven: OrderedDict[str, None] = OrderedDict()
        self._suspects: OrderedDict[str, None] = OrderedDict()
        self._quarantine: OrderedDict[str, float] = OrderedDict()
        self._crashes: OrderedDict[ReplicaRef, _Crash] = OrderedDict()
        self._settled: OrderedDict[ReplicaRef, None] = OrderedDict()
        self._aboard: dict[ReplicaRef, Counter[str]] = {}
        self._fresh_proofs: OrderedDict[str, None] = OrderedDict()
        self._reports: list[CrashReport] = []

    # ---- what requests carry ----------------------------------------------------------------------------------------

    def board(self, ref: ReplicaRef, media: Iterable[str]) -> None:
        """A request with these items was sent to `ref`; `leave` must follow with the same items."""
        self._aboard.setdefault(ref, Counter()).update(media)

    def leave(self, ref: ReplicaRef, media: Iterable[str]) -> None:
        aboard = self._aboard.get(ref)
        if aboard is None:
            return
        aboard.subtract(media)
        self._aboard[ref] = +aboard
        if not self._aboard[ref]:
            del self._aboard[ref]

    def proven(self, media: str) -> bool:
        return media in self._proven

    def on_answered(self, media: str) -> bool:
        """A replica answered with this item; True if that is news."""
        news = media not in self._proven
        _remember(self._proven, media, None, self._max)
        self._suspects.pop(media, None)
        if news:
            _remember(self._fresh_proofs, media, None, self._max)
        return news

    def on_died(self, ref: ReplicaRef, now: float) -> None:
        """`ref` died; called once or for each request that it took along."""
        unproven = tuple(sorted(m for m in self._aboard.get(ref, ()) if m not in self._proven))
        if not unproven:
            return
        self.on_report(CrashReport(ref, unproven), now)
        if not self._judge and len(self._reports) < 1024:
            self._reports.append(CrashReport(ref, unproven))

    # ---- verdicts ---------------------------------------------------------------------------------------------------

    def on_report(self, report: CrashReport, now: float) -> None:
        """A gateway's account of a death; a late one, after the verdict, only adds suspects."""
        if not self._judge or report.ref in self._settled:
            self._suspect(report.media)
            return
        crash = self._crashes.setdefault(report.ref, _Crash(now))
        crash.media.update(m for m in report.media if m not in self._proven)

    def settle(self, now: float) -> list[str]:
        """Judge the deaths whose reports are in; returns what is newly quarantined."""
        guilty = []
        for ref, crash in list(self._crashes.items()):
            if now - crash.at < self._settle_s:
                continue
            del self._crashes[ref]
            _remember(self._settled, ref, None, 1024)
            aboard = {m for m in crash.media if m not in self._proven}
            if len(aboard) == 1 and aboard <= self._suspects.keys():
                (media,) = aboard
                guilty.append(media)
                self.learn(quarantined=[media], now=now)
            else:
                self._suspect(aboard)
        return guilty

    def suspect(self, media: str) -> bool:
        return media in self._suspects or any(media in crash.media for crash in self._crashes.values())

    def quarantined(self, media: str, now: float) -> bool:
        until = self._quarantine.get(media)
        if until is not None and now >= until:
            del self._quarantine[media]
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
        for media in proofs:
            _remember(self._fresh_proofs, media, None, self._max)
        self._reports[:0] = reports
        del self._reports[1024:]

    def learn(self, *, proven: Iterable[str] = (), quarantined: Iterable[str] = (), now: float) -> None:
        """Take over what the table's owner knows."""
        for media in proven:
            _remember(self._proven, media, None, self._max)
            self._suspects.pop(media, None)
        for media in quarantined:
            _remember(self._quarantine, media, now + self._quarantine_s, self._max)
            self._suspects.pop(media, None)

    def _suspect(self, media: Iterable[str]) -> None:
        for item in media:
            if item not in self._proven:
                _remember(self._suspects, item, None, self._max)


def _remember(table: OrderedDict[K, V], key: K, value: V, limit: int) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > limit:
        table.popitem(last=False)
