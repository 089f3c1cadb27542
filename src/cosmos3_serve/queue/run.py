"""The doors of the room: work on a queue, look at it, and say what is wanted of it."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from cosmos3_serve.client import load
from cosmos3_serve.client.signals import until_signal
from cosmos3_serve.errors import (
    Cosmos3RayServeError,
    FieldError,
    Incomplete,
    Interrupted,
    NotFound,
    StorageFailure,
)
from cosmos3_serve.publication.layout import INDEX
from cosmos3_serve.queue import planning
from cosmos3_serve.queue.attempts import PATIENCE_S
from cosmos3_serve.queue.database import QueueDatabase, folder_of
from cosmos3_serve.queue.endpoints import Endpoint, Fleet
from cosmos3_serve.queue.generator import GeneratorOptions
from cosmos3_serve.queue.leases import LEASE_S, Leases, LocalWorkers
from cosmos3_serve.queue.place import QueuePlace
from cosmos3_serve.queue.progress import QueueProgress, Silent
from cosmos3_serve.queue.records import Index
from cosmos3_serve.queue.work import Runner, Work
from cosmos3_serve.queue.worker import Worker
from cosmos3_serve.storage.files import in_thread

SHOWN_FAILURES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOrder:
    """What the caller asked for.

    Attributes:
        input_path: a folder, glob or S3 prefix of batch files, or samples by line; empty to continue what is there.
        endpoints: the services, each given `parallel` parts at once.
        attempts: counted attempts at a part before what succeeded is published.
        allow_partial: failed samples do not make the queue fail.
        lease_s: seconds after which another machine takes a part whose worker says nothing.
        work: what the parts are and how they are done.
    """

    input_path: str
    output_path: str
    endpoints: Sequence[str] = ()
    parallel: int = 2
    attempts: int = 2
    allow_partial: bool = False
    dry_run: bool = False
    lease_s: float = LEASE_S
    work: Work = field(default_factory=GeneratorOptions)


def run_queue(order: QueueOrder, progress: QueueProgress | None = None) -> dict[str, Any]:
    """Work on a queue until every part has ended; the index, or the plan with `dry_run`. Ctrl-C and SIGTERM end it.

    Raises:
        InputError: exit code 2: the input is wrong, or the place is that of another input (`queue_differs`).
        Cosmos3RayServeError: code `samples_failed`: the index is published, and names samples that failed for good.
        Incomplete: exit code 5; Interrupted (130): the same command, or `cosmos3 queue resume`, continues it.
        Cosmos3Error: no part can be done from here.
    """
    work = run_queue_async(order, progress)
    return asyncio.run(until_signal(work, lambda: _interrupted(order)))


async def run_queue_async(
    order: QueueOrder,
    progress: QueueProgress | None = None,
    environ: Mapping[str, str] | None = None,
    runner: Runner | None = None,
) -> dict[str, Any]:
    """As `run_queue`, on the caller's loop. Cancelling it leaves a queue that the same call continues.

    Args:
        runner: does the parts; default: the generator's.
    """
    environ, progress = os.environ if environ is None else environ, progress or Silent()
    output_path = load.check_output(order.output_path, environ)
    work = order.work
    endpoints = [work.endpoint(text, environ) for text in order.endpoints or [""]]
    if order.dry_run:
        return await _planned(order, endpoints, environ, progress)
    load.token_of(work.token_env, environ)
    runner = runner or work.runner(progress.notice, environ)
    place = QueuePlace.at(output_path, environ)
    folder = folder_of(output_path, work.journal_dir, environ)
    with ExitStack() as stack:
        database = stack.enter_context(await in_thread(QueueDatabase, folder))
        plan, made = await planning.join(place, order.input_path, environ, work.format.kind), False
        if plan is None:
            _require_input(order)
            limits = await runner.limits(endpoints)
            progress.notice("checking and splitting the input")
            plan, made = await planning.make(place, order.input_path, limits, environ, form=work.format), True
        await in_thread(database.load_plan, plan)
        await in_thread(database.keep_options, _kept(order, endpoints))
        workers, name = LocalWorkers(folder), secrets.token_hex(8)
        stack.enter_context(workers.alive(name))
        worker = Worker(
            place,
            plan,
            database,
            Leases(place, name, order.lease_s, dead=workers.dead),
            Fleet([Endpoint(address) for address in dict.fromkeys(endpoints)], order.parallel, runner.check),
            runner,
            progress,
            attempts=order.attempts,
            patience_s=work.timeout or PATIENCE_S,
            resume_command=resume_command(output_path, work),
        )
        if not made and not await in_thread(_started_here, database):
            worker.board.start_at(secrets.randbelow(len(plan.parts)))
        try:
            index = await worker.run()
        except StorageFailure as error:
            if not error.retryable:
                raise
            raise Incomplete(
                error.detail, remedy=f"continue with: {worker.resume_command}", code=error.stable_code
            ) from None
        return _concluded(index, order)


def _started_here(database: QueueDatabase) -> bool:
    return any(row.result or row.endpoint for row in database.rows())


async def _planned(
    order: QueueOrder, endpoints: Sequence[str], environ: Mapping[str, str], progress: QueueProgress
) -> dict[str, Any]:
    """What would be done; nothing is written, and a service is asked for its limits only with a token at hand."""
    _require_input(order)
    work = order.work
    token = environ.get(work.token_env, "").strip()
    limits = await work.runner(progress.notice, environ).limits(endpoints if token else ())
    plan = await planning.make(None, order.input_path, limits, environ, form=work.format)
    return {
        "dry_run": True,
        "input_path": plan.source,
        "output_path": order.output_path,
        "endpoints": list(endpoints),
        "samples": plan.samples,
        "limits": limits.model_dump(),
        "parts": [{"name": part.name, "samples": part.samples, "bytes": part.bytes} for part in plan.parts],
    }


def _require_input(order: QueueOrder) -> None:
    if not order.input_path.strip():
        raise NotFound(
            "there is no queue at the output place", remedy="give --input-path to begin one", code="no_such_queue"
        )


def _concluded(index: Index, order: QueueOrder) -> dict[str, Any]:
    if index.failed and not order.allow_partial:
        failed = [(part, sample) for part in index.parts for sample in part.failed]
        raise Cosmos3RayServeError(
            f"{index.failed} of {index.samples} samples failed for good; the others are published, see {INDEX}",
            remedy="mend those samples and submit them to another output path; with --allow-partial this is no failure",
            code="samples_failed",
            errors=[
                FieldError(f"{part.name}/{sample.name}", f"{sample.code}: {sample.message}".rstrip(": "))
                for part, sample in failed[:SHOWN_FAILURES]
            ],
        )
    return index.model_dump(mode="json")


def _kept(order: QueueOrder, endpoints: Sequence[str]) -> dict[str, Any]:
    return {
        "endpoint": list(endpoints),
        "parallel_parts": order.parallel,
        "part_attempts": order.attempts,
        "allow_partial": order.allow_partial,
        **order.work.kept(),
    }


def resume_command(output_path: str, work: Work) -> str:
    words = ["cosmos3", "queue", "resume", output_path]
    if work.journal_dir is not None:
        words += ["--journal-dir", str(work.journal_dir)]
    return shlex.join(words)


def _interrupted(order: QueueOrder) -> Interrupted:
    return Interrupted(
        "stopped; nothing is lost",
        remedy="continue with the same command, or with: "
        f"{resume_command(order.output_path, order.work)}; running parts go on at their services, "
        "`cosmos3 queue cancel` ends them",
    )
