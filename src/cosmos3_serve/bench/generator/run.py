"""One benchmark of a generator from its first question to its records."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from cosmos3_serve.bench import machine
from cosmos3_serve.bench.generator.load import Load
from cosmos3_serve.bench.generator.records import Cell, Run, Sample, Service, Workload
from cosmos3_serve.bench.generator.scenes import Judge
from cosmos3_serve.bench.generator.validity import require_possible
from cosmos3_serve.blockworld.asked import require_measures
from cosmos3_serve.client import problem
from cosmos3_serve.client.deadline import Deadline
from cosmos3_serve.client.http import Service as Connection
from cosmos3_serve.errors import ContractViolation
from cosmos3_serve.retry import ONCE

Progress = Callable[[str, int, int], None]


async def run(
    endpoint: str,
    token: str,
    workload: Workload,
    *,
    timeout_s: float = 3600.0,
    progress: Progress = lambda what, done, of: None,
) -> Run:
    """Run every cell, and write down what came.

    Args:
        timeout_s: for all of it.
        progress: cell, requests that ended, requests of the cell.

    Raises:
        InputError: more clients than requests (code `concurrency_unreached`).
        UsageError: what comes cannot be judged here.
        NotReady, Unauthorized, Unreachable: the service cannot be asked.
        Cosmos3Error: it refuses a sample of a shape before the first cell.
        Incomplete: `timeout_s` passed (code `deadline_exceeded`).
    """
    require_possible(workload)
    if workload.content == "scenes" and workload.fetch:
        require_measures()
    connections = max(workload.requests, 8, *(arrivals.clients for arrivals in workload.arrivals))
    cells: list[Cell] = []
    samples: list[Sample] = []
    connection = Connection(endpoint, token, Deadline(timeout_s), connections=connections)
    async with connection as service, Judge() as judge:
        said = await _service(service)
        load = Load(service, workload, judge=judge)
        await load.warm_up()
        started = datetime.now(UTC).isoformat(timespec="seconds")
        for repeat in range(workload.repeats):
            for mix in workload.mixes:
                for arrivals in workload.arrivals:
                    label = f"{arrivals.label}, {mix.label}"
                    ended = 0

                    def done(label: str = label) -> None:
                        nonlocal ended
                        ended += 1
                        progress(label, ended, workload.requests)

                    cell, found = await load.cell(arrivals, mix, repeat, done)
                    cells.append(cell)
                    samples += found
    return Run(workload=workload, service=said, machine=machine.describe(), started_at=started, cells=cells,
               samples=samples)  # fmt: skip


async def _service(service: Connection) -> Service:
    answer = await service.call("GET", "/ready", retry=ONCE)
    if answer.status == 503:
        raise problem.not_ready(answer.body)
    if not answer.ok:
        raise answer.failure()
    report: dict[str, Any] = problem.parse(answer.body)
    try:
        return Service(
            backend=report["backend"],
            model=report["model"],
            revision=report["framework_revision"],
            source=report["server_source_revision"],
            weights=report.get("weights") or "unknown",
            guardrails=report["guardrails"],
            max_batch_size=report["max_batch_size"],
            max_num_seqs=report.get("max_num_seqs"),
            window_s=report["batch_wait_timeout_s"],
        )
    except (KeyError, ValidationError) as error:
        raise ContractViolation(f"/ready says not what a generator says: {str(error).splitlines()[0]}") from None
