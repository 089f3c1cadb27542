"""`index.json`: the last object of a queue, created only if free, when every part has ended."""

from __future__ import annotations

from collections.abc import Mapping

from cosmos3_serve.errors import IntegrityError, StorageFailure
from cosmos3_serve.publication.layout import INDEX, MAX_RECORD_BYTES, PROVENANCE
from cosmos3_serve.publication.pool import each
from cosmos3_serve.queue.place import QueuePlace
from cosmos3_serve.queue.records import Index, PartResult, PartStatus, Plan, sha256_of

READS = 16


def build(plan: Plan, results: Mapping[str, PartResult]) -> Index:
    """The same for every worker: parts in the plan's order, no time and no machine in it."""
    parts = tuple(results[part.name] for part in plan.parts)
    succeeded = sum(part.succeeded for part in parts)
    complete = all(part.status is PartStatus.COMPLETED for part in parts)
    return Index(
        queue_id=plan.queue_id,
        status="completed" if complete else "partial" if succeeded else "failed",
        source=plan.source,
        source_sha256=plan.source_sha256,
        samples=plan.samples,
        succeeded=succeeded,
        failed=plan.samples - succeeded,
        parts=parts,
    )


async def publish_index(place: QueuePlace, plan: Plan, results: Mapping[str, PartResult]) -> Index:
    """Read every part's provenance.json once more, create the index, and return what is stored.

    Raises:
        IntegrityError: code `part_altered`: a part is no longer what was recorded; code `index_differs`: the place
            holds another index.
    """
    index = build(plan, results)
    altered: list[str] = []

    async def compare(result: PartResult) -> None:
        if result.manifest_sha256 is None:
            return
        found = await place.store.get_bytes(place.part_key(result.name, PROVENANCE), max_bytes=MAX_RECORD_BYTES)
        if found is None or sha256_of(found[1]) != result.manifest_sha256:
            altered.append(result.name)

    await each(list(index.parts), READS, compare)
    if altered:
        raise IntegrityError(
            f"{PROVENANCE} of part {min(altered)} is no longer the one that was recorded"
            + (f" (and of {len(altered) - 1} more)" if len(altered) > 1 else ""),
            remedy="find out what else writes there; `cosmos3 batch audit` says what is wrong with a part",
            code="part_altered",
        )
    if not await place.create(INDEX, index.to_bytes()):
        raise IntegrityError(
            f"{INDEX} at {place} is not the index of this queue",
            remedy="find out what else writes there; the parts are published and stay as they are",
            code="index_differs",
        )
    stored = await place.index()
    if stored is None:
        raise StorageFailure(f"storage does not show the {INDEX} that it has just stored", code="storage_unavailable")
    if stored != index:
        raise IntegrityError(f"storage gives back another {INDEX} than was stored", code="index_differs")
    await place.tidy()
    return stored
