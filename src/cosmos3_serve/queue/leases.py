"""Who works on a part: a small object at the output place, created only if free and renewed by compare-and-swap.

No clock of another machine is read. The holder counts from the start of its last renewal that succeeded and gives up
before the lease ends; whoever wants the part watches, by its own clock, whether the object changes for a whole lease.
So the holder always stops first. The claims of the part's publication are a second defence.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cosmos3_serve.errors import StorageFailure
from cosmos3_serve.queue.place import QueuePlace
from cosmos3_serve.queue.records import Lease
from cosmos3_serve.storage.store import ObjectInfo

LEASE_S = 60.0
SAFE = 0.75  # of a lease: the holder stops when it could not renew for so long
RENEWALS = 5  # in one lease
AGAIN_S = 1.0
SLEEP_S = 1.0
KEPT_S = 7 * 86400.0  # of a killed worker's file

Clock = Callable[[], float]


def elapsed() -> float:
    """Seconds, those of a suspended machine included: another worker may have taken the part in them."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass
class Held:
    """A lease of ours."""

    part: str
    lease: Lease
    info: ObjectInfo
    place: QueuePlace
    lease_s: float
    clock: Clock
    renewed_at: float  # when the last renewal that succeeded began

    def left(self) -> float:
        """Seconds in which the part is certainly ours."""
        return self.renewed_at + SAFE * self.lease_s - self.clock()

    async def keep(self) -> None:
        """Renew until the lease is lost, or can no longer be known to be ours; then return."""
        wait = self.lease_s / RENEWALS
        due = self.clock() + wait
        while self.left() > 0:
            # Short sleeps: timers of the event loop stand still while the machine is suspended.
            await asyncio.sleep(min(SLEEP_S, max(0.0, min(due - self.clock(), self.left()))))
            if self.left() <= 0:
                return
            if self.clock() < due:
                continue
            try:
                async with asyncio.timeout(self.left()):
                    if not await self.renew():
                        return
                wait = self.lease_s / RENEWALS
            except TimeoutError:
                return
            except StorageFailure:
                wait = min(AGAIN_S, self.lease_s / RENEWALS)
            due = self.clock() + wait

    async def renew(self, *, released: bool = False) -> bool:
        """Whether the part is still ours."""
        began = self.clock()
        lease = self.lease.model_copy(update={"renewal": self.lease.renewal + 1, "released": released})
        info = await self.place.swap_lease(self.part, lease, self.info)
        if info is None:
            # A renewal of ours may have been carried out although its answer was lost.
            found = await self.place.lease(self.part)
            if found is None or found[1].worker != self.lease.worker or found[1].released:
                return False
            info, lease = found
        self.lease, self.info, self.renewed_at = lease, info, began
        return True

    async def release(self) -> None:
        """Let others have the part at once. A lease that cannot be released ends by itself."""
        with suppress(StorageFailure, TimeoutError):
            async with asyncio.timeout(self.lease_s / 2):
                await self.renew(released=True)


@dataclass
class Leases:
    """All leases of one worker.

    Args:
        dead: whether a worker is known to have ended, though its leases were not released.
    """

    place: QueuePlace
    worker: str
    lease_s: float = LEASE_S
    dead: Callable[[str], bool] = lambda worker: False
    clock: Clock = elapsed
    _seen: dict[str, tuple[tuple[str, int], float]] = field(default_factory=dict)

    async def take(self, part: str, endpoint: str) -> tuple[Held, str] | None:
        """The lease and where the part was sent before; None while somebody else has it, or took it first."""
        began = self.clock()
        lease = Lease(worker=self.worker, endpoint=endpoint)
        if (info := await self.place.create_lease(part, lease)) is not None:
            return self._held(part, lease, info, began), ""
        found = await self.place.lease(part)
        if found is None:
            return None
        current, theirs = found
        if not (theirs.released or theirs.worker == self.worker or self.dead(theirs.worker)):
            version = (theirs.worker, theirs.renewal)
            known, since = self._seen.get(part, (None, 0.0))
            if known != version:
                self._seen[part] = (version, self.clock())
                return None
            if self.clock() - since < self.lease_s:
                return None
        began = self.clock()
        lease = Lease(worker=self.worker, renewal=theirs.renewal + 1, endpoint=endpoint)
        if (info := await self.place.swap_lease(part, lease, current)) is None:
            return None
        return self._held(part, lease, info, began), theirs.endpoint

    def _held(self, part: str, lease: Lease, info: ObjectInfo, began: float) -> Held:
        self._seen.pop(part, None)
        return Held(part, lease, info, self.place, self.lease_s, self.clock, began)


class LocalWorkers:
    """Which workers of this machine are alive: each holds a lock on a file of its own, which a killed one cannot."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "workers"

    @contextmanager
    def alive(self, worker: str) -> Iterator[None]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in self._folder.iterdir():
            with suppress(FileNotFoundError):
                if old.stat().st_mtime < time.time() - KEPT_S and self.dead(old.name):
                    old.unlink()
        path = self._folder / worker
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
            path.unlink(missing_ok=True)  # a worker that failed stays known, and its leases are free at once
        finally:
            os.close(handle)

    def dead(self, worker: str) -> bool:
        """Whether it ran on this machine and has ended. Its file stays, since it may hold several leases."""
        if not worker or "/" in worker:
            return False
        try:
            handle = os.open(self._folder / worker, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            return True
        finally:
            os.close(handle)
