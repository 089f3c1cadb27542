"""The output place of a queue, as a store of records.

parts/<part>/                 publications, each by the rules of a single batch
index.json                    last, created only if free: every part has ended
.cosmos3-queue/queue.json     the plan, created only if free: it makes the place this queue's
.cosmos3-queue/control.json   running, paused or cancelled
.cosmos3-queue/batches/<id>/  the batches that the parts are; removed after the index is there
.cosmos3-queue/leases/        who works on what; removed likewise
.cosmos3-queue/results/       how each part ended, created only if free
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final, Self, TypeVar

from pydantic import ValidationError

from cosmos3_serve.errors import Conflict, LimitExceeded, StorageFailure
from cosmos3_serve.publication.layout import INDEX, PARTS
from cosmos3_serve.publication.pool import each
from cosmos3_serve.queue.records import Control, Index, Lease, PartResult, Plan, PlannedPart, Record
from cosmos3_serve.settings import MIB
from cosmos3_serve.storage.location import Location, open_store
from cosmos3_serve.storage.store import BOOKKEEPING, ObjectInfo

FOLDER: Final = f"{BOOKKEEPING}queue"
PLAN: Final = f"{FOLDER}/queue.json"
CONTROL: Final = f"{FOLDER}/control.json"
BATCHES: Final = f"{FOLDER}/batches"
LEASES: Final = f"{FOLDER}/leases"
RESULTS: Final = f"{FOLDER}/results"
MAX_RECORD_BYTES: Final = 256 * MIB
DELETES = 16

R = TypeVar("R", bound=Record)


class QueuePlace:
    """Every method raises StorageFailure when storage would not, after retries; code `queue_damaged` for a record that
    cannot be read."""

    def __init__(self, location: Location) -> None:
        self.location, self.store = location, location.store

    @classmethod
    def at(cls, output_path: str, environ: Mapping[str, str] | None = None) -> Self:
        return cls(open_store(output_path, environ))

    def __str__(self) -> str:
        return str(self.location)

    # ---- where things are --------------------------------------------------------------------------------------------

    def part(self, name: str) -> str:
        """The output path of a part."""
        return f"{self.location}{PARTS}/{name}/"

    def part_key(self, name: str, record: str) -> str:
        return self.location.key(f"{PARTS}/{name}/{record}")

    def batch(self, plan: Plan, part: PlannedPart) -> str:
        """The input path of a part."""
        return f"{self.location}{batch_name(plan.queue_id, part.name)}"

    # ---- records -----------------------------------------------------------------------------------------------------

    async def plan(self) -> Plan | None:
        return await self._read(PLAN, Plan)

    async def index(self) -> Index | None:
        return await self._read(INDEX, Index)

    async def control(self) -> Control:
        return await self._read(CONTROL, Control) or Control()

    async def set_control(self, control: Control) -> None:
        await self.store.put_bytes(self.location.key(CONTROL), control.to_bytes())

    async def result(self, part: str) -> PartResult | None:
        return await self._read(f"{RESULTS}/{part}.json", PartResult)

    async def add_result(self, result: PartResult) -> PartResult:
        """Record how a part ended; what another worker recorded before stands and is returned."""
        if await self.create(f"{RESULTS}/{result.name}.json", result.to_bytes()):
            return result
        stored = await self.result(result.name)
        if stored is None:
            raise StorageFailure("storage says that a result exists, and does not show it", code="storage_unavailable")
        return stored

    async def ended(self) -> set[str]:
        """Names of the parts that have a result, from one listing."""
        return {name async for name in self._names(RESULTS)}

    async def leased(self) -> set[str]:
        """Names of the parts that somebody has or had, from one listing."""
        return {name async for name in self._names(LEASES)}

    async def lease(self, part: str) -> tuple[ObjectInfo, Lease] | None:
        return await self._versioned(f"{LEASES}/{part}.json", Lease)

    async def create_lease(self, part: str, lease: Lease) -> ObjectInfo | None:
        """None where there is one already."""
        try:
            return await self.store.put_bytes(self.location.key(f"{LEASES}/{part}.json"), lease.to_bytes(), create=True)
        except Conflict:
            return None

    async def swap_lease(self, part: str, lease: Lease, expected: ObjectInfo) -> ObjectInfo | None:
        """None where it is no longer the expected version."""
        try:
            return await self.store.swap(self.location.key(f"{LEASES}/{part}.json"), lease.to_bytes(), expected)
        except Conflict:
            return None

    async def create(self, name: str, data: bytes) -> bool:
        """Whether the object was free, or holds these very bytes already."""
        try:
            await self.store.put_bytes(self.location.key(name), data, create=True)
        except Conflict:
            return await self.read(name) == data
        return True

    async def read(self, name: str) -> bytes | None:
        found = await self._get(name)
        return None if found is None else found[1]

    async def remove_batches(self, queue_id: str) -> None:
        await self._remove_below(f"{BATCHES}/{queue_id}")

    async def tidy(self) -> None:
        """Remove what nobody needs once index.json is there; a worker that comes late finds the results."""
        await self._remove_below(BATCHES)
        await self._remove_below(LEASES)

    async def _remove_below(self, folder: str) -> None:
        keys = [info.key async for info in self.store.list(self.location.key(folder))]
        await each(keys, DELETES, self.store.delete)

    async def _names(self, folder: str) -> AsyncIterator[str]:
        top = self.location.key(folder)
        async for info in self.store.list(top):
            name = info.key.removeprefix(f"{top}/")
            if name.endswith(".json") and "/" not in name:
                yield name.removesuffix(".json")

    async def _read(self, name: str, kind: type[R]) -> R | None:
        found = await self._versioned(name, kind)
        return None if found is None else found[1]

    async def _versioned(self, name: str, kind: type[R]) -> tuple[ObjectInfo, R] | None:
        found = await self._get(name)
        if found is None:
            return None
        try:
            return found[0], kind.model_validate_json(found[1])
        except ValidationError:
            raise StorageFailure(
                f"{name} at {self} is damaged or of another program",
                remedy="choose another --output-path; published parts stay as they are",
                code="queue_damaged",
            ) from None

    async def _get(self, name: str) -> tuple[ObjectInfo, bytes] | None:
        try:
            return await self.store.get_bytes(self.location.key(name), max_bytes=MAX_RECORD_BYTES)
        except LimitExceeded:
            raise StorageFailure(f"{name} at {self} is too large to be read", code="queue_damaged") from None


def batch_name(queue_id: str, part: str) -> str:
    return f"{BATCHES}/{queue_id}/{part}.json"
