"""Look at a queue and say what is wanted of it, from any machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cosmos3_serve.client import load
from cosmos3_serve.errors import Conflict, NotFound
from cosmos3_serve.publication.pool import each
from cosmos3_serve.queue.database import QueueDatabase, folder_of
from cosmos3_serve.queue.place import QueuePlace
from cosmos3_serve.queue.records import Control, Lease, PartResult, PartStatus, Plan, Wanted

READS = 16
SHOWN_PARTS = 1000


def status(
    output_path: str, journal_dir: Path | None = None, environ: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What the output place says, and how far the parts that this machine works on are.

    Raises:
        NotFound: code `no_such_queue`.
        StorageFailure: storage would not tell.
    """
    environ = os.environ if environ is None else environ
    place = QueuePlace.at(load.check_output(output_path, environ), environ)
    return asyncio.run(_status(place, folder_of(output_path.strip(), journal_dir, environ)))


def kept_options(
    output_path: str, journal_dir: Path | None = None, environ: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What the last worker of this machine was started with; empty where there was none."""
    folder = folder_of(output_path.strip(), journal_dir, environ)
    if not (folder / "queue.sqlite").exists():
        return {}
    with QueueDatabase(folder) as database:
        return database.options()


def holds_queue(output_path: str, environ: Mapping[str, str] | None = None) -> bool:
    """Whether a queue was planned at an output path.

    Raises:
        UsageError: it is no output path.
        StorageFailure: storage would not tell.
    """
    environ = os.environ if environ is None else environ
    place = QueuePlace.at(load.check_output(output_path, environ), environ)
    return asyncio.run(place.plan()) is not None


def want(
    output_path: str, wanted: Wanted, environ: Mapping[str, str] | None = None, *, ended_is_fine: bool = False
) -> dict[str, Any]:
    """Tell all workers of a queue; they see it within seconds.

    Raises:
        NotFound: code `no_such_queue`.
        Conflict: code `queue_ended`: every part has ended.
    """
    environ = os.environ if environ is None else environ
    place = QueuePlace.at(load.check_output(output_path, environ), environ)

    async def tell() -> dict[str, Any]:
        plan = await _plan(place)
        if await place.index() is None:
            await place.set_control(Control(wanted=wanted))
        elif not ended_is_fine:
            raise Conflict(f"the queue at {place} has ended", remedy="its index.json says how", code="queue_ended")
        return {"output_path": str(place), "queue_id": plan.queue_id, "kind": plan.kind.value, "wanted": wanted.value}

    return asyncio.run(tell())


async def _plan(place: QueuePlace) -> Plan:
    plan = await place.plan()
    if plan is None:
        raise NotFound(
            f"there is no queue at {place}", remedy="name the --output-path of the queue", code="no_such_queue"
        )
    return plan


async def _status(place: QueuePlace, folder: Path) -> dict[str, Any]:
    plan = await _plan(place)
    results: dict[str, PartResult] = {}
    leases: dict[str, Lease] = {}
    done: dict[str, int] = {}
    rate = 0.0
    if (folder / "queue.sqlite").exists():
        with QueueDatabase(folder) as database:
            rows = database.rows()
            results = {row.name: row.result for row in rows if row.result is not None}
            done = {row.name: row.done for row in rows if row.worker}
            rate = database.rate()
    index = await place.index()
    if index is not None:
        results = {part.name: part for part in index.parts}
    names = {part.name for part in plan.parts}
    results = {name: result for name, result in results.items() if name in names}

    async def fetch(name: str) -> None:
        if (result := await place.result(name)) is not None:
            results[name] = result

    async def held(name: str) -> None:
        if (found := await place.lease(name)) is not None and not found[1].released:
            leases[name] = found[1]

    if index is None:
        await each([name for name in await place.ended() if name in names and name not in results], READS, fetch)
        await each([name for name in await place.leased() if name in names and name not in results], READS, held)
    ended = sum(result.samples for result in results.values())
    running = sum(samples for name, samples in done.items() if name in leases)
    left = plan.samples - ended - running
    by_status = {state.value: sum(r.status is state for r in results.values()) for state in PartStatus}
    return {
        "output_path": str(place),
        "queue_id": plan.queue_id,
        "kind": plan.kind.value,
        "state": "ended" if index is not None else (await place.control()).wanted.value,
        "outcome": index.status if index is not None else None,
        "input_path": plan.source,
        "parts": {"total": len(plan.parts), "running": len(leases),
                  "pending": len(plan.parts) - len(results) - len(leases), **by_status},
        "samples": {"total": plan.samples, "ended": ended, "running_ended": running,
                    "succeeded": sum(result.succeeded for result in results.values()),
                    "failed": sum(result.samples - result.succeeded for result in results.values())},
        "workers": len({lease.worker for lease in leases.values()}),
        "samples_per_s": round(rate, 3) if rate and leases else None,
        "eta_s": round(left / rate, 1) if rate and leases else None,
        "running": [{"part": name, "worker": lease.worker, "endpoint": lease.endpoint, "samples_ended": done.get(name)}
                    for name, lease in sorted(leases.items())[:SHOWN_PARTS]],
        "failed": [{"part": result.name, "status": result.status.value, "code": result.code,
                    "samples": [sample.model_dump() for sample in result.failed[:100]]}
                   for _, result in sorted(results.items()) if result.status is not PartStatus.COMPLETED][:SHOWN_PARTS],
    }  # fmt: skip
