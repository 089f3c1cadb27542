"""Parts that are batches of a generator: submitted, followed, verified and published by the batch client."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cosmos3_serve.client import load, problem
from cosmos3_serve.client.batches import BatchLedger
from cosmos3_serve.client.claims import State, read_log
from cosmos3_serve.client.deadline import Deadline
from cosmos3_serve.client.health import ASK
from cosmos3_serve.client.http import Service
from cosmos3_serve.client.journal import Journal, key_of
from cosmos3_serve.client.journals import Journals, default_root
from cosmos3_serve.client.submission import CONCURRENCY, SPOOL_BYTES
from cosmos3_serve.client.submit import Order, submit_batch_async
from cosmos3_serve.contract.jsontext import decode_json
from cosmos3_serve.contract.views import BatchLimits
from cosmos3_serve.contract.wire import FRAMEWORK_REVISION
from cosmos3_serve.errors import Conflict, ContractViolation, Cosmos3Error, Incomplete, InputError, NotFound
from cosmos3_serve.queue.batches import BATCHES, Batches
from cosmos3_serve.queue.records import (
    MIN_BODY_BYTES,
    FailedSample,
    Limits,
    PartResult,
    PartStatus,
    PlannedPart,
    given_up,
)
from cosmos3_serve.queue.sources import MAX_FILE_BYTES
from cosmos3_serve.queue.work import Task
from cosmos3_serve.settings import TOKEN_ENV
from cosmos3_serve.storage.files import in_thread
from cosmos3_serve.storage.location import open_object, open_store

CHECK_S = 5.0
READY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorOptions:
    """See `work.Work`. As the fields of `Order`, for every part; `timeout` is of one attempt at a part."""

    token_env: str = TOKEN_ENV
    expected_revision: str = FRAMEWORK_REVISION
    timeout: float | None = None
    concurrency: int = CONCURRENCY
    spool_bytes: int = SPOOL_BYTES
    journal_dir: Path | None = None
    run_id: str = ""

    @property
    def format(self) -> Batches:
        return BATCHES

    def endpoint(self, text: str, environ: Mapping[str, str]) -> str:
        return load.endpoint_of(text, environ)

    def runner(self, notice: Callable[[str], None], environ: Mapping[str, str]) -> GeneratorRunner:
        return GeneratorRunner(self, notice, environ)

    def kept(self) -> dict[str, Any]:
        return {
            "token_env": self.token_env,
            "expected_revision": self.expected_revision,
            "timeout": self.timeout,
            "concurrency": self.concurrency,
            "spool_bytes": self.spool_bytes,
            "run_id": self.run_id,
        }


@dataclass
class GeneratorRunner:
    """See `work.Runner`."""

    options: GeneratorOptions
    notice: Callable[[str], None] = lambda text: None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    async def run(self, task: Task, done: Callable[[int], None]) -> PartResult:
        if task.known:
            task = replace(task, endpoint=await self._bound(task) or task.endpoint)
        for resume in (True, False, True) if task.known else (False, True):
            try:
                return part_result(task.part, await submit_batch_async(self._order(task, resume), _Told(self, done)))
            except NotFound as error:
                if not resume or error.stable_code != "no_such_run":
                    raise
            except Conflict as error:
                if resume or error.stable_code not in ("publication_exists", "unfinished_run"):
                    raise
        raise Conflict(
            f"the output place of part {task.part.name} belongs to another batch",
            remedy="look at what is there; nothing is ever overwritten",
            code="publication_exists",
        )

    async def give_up(self, task: Task, error: Cosmos3Error) -> PartResult:
        told: dict[str, FailedSample] = {}
        for finding in error.errors if error.stable_code == "samples_failed" else ():
            name, code, message = (*finding.message.split(": ", 2), "", "")[:3]
            told[name] = FailedSample(name=name, code=code, message=message)
        names = [str(sample.get("name")) for sample in await self._samples(task)]
        return given_up(
            task.part,
            error.stable_code,
            error.detail,
            (told.get(name) or FailedSample(name=name, code=error.stable_code) for name in names),
        )

    async def cancel(self, task: Task) -> None:
        async with self._service(task.endpoint, READY_S) as service:
            await BatchLedger(service).cancel(task.part.request_id)

    async def check(self, endpoint: str) -> bool:
        try:
            async with self._service(endpoint, CHECK_S) as service:
                await service.call("GET", "/health", retry=ASK, read_s=CHECK_S)
        except Cosmos3Error:
            return False
        return True

    async def limits(self, endpoints: Sequence[str]) -> Limits:
        """What every one of the services takes: what they announce in /ready, else the documented defaults."""
        found = Limits()
        for endpoint in endpoints:
            try:
                async with self._service(endpoint, READY_S) as service:
                    answer = await service.call("GET", "/ready", retry=ASK)
            except Cosmos3Error as error:
                self.notice(f"{endpoint} does not say its limits ({error.stable_code}); the documented ones are used")
                continue
            found = _smaller(found, problem.parse(answer.body)) if answer.ok else found
        return found

    # ---- one part ----------------------------------------------------------------------------------------------------

    def _order(self, task: Task, resume: bool) -> Order:
        options = self.options
        return Order(
            input_path="" if resume else task.input_path,
            output_path=task.output_path,
            endpoint=task.endpoint,
            token_env=options.token_env,
            timeout=options.timeout,
            run_id=f"{options.run_id}-{task.part.name}" if options.run_id else "",
            resume=resume,
            expected_revision=options.expected_revision,
            allow_partial=task.partial,
            journal_dir=options.journal_dir,
            concurrency=options.concurrency,
            spool_bytes=options.spool_bytes,
        )

    async def _bound(self, task: Task) -> str | None:
        """The service that alone can finish the part, if there is one.

        Another service than before does not have the artifacts that a kept response names. Before anything of them is
        published the response is forgotten, and the new service is asked; after that the outcome is fixed.

        Raises:
            Conflict: code `run_in_progress`: another process works on the part.
            Incomplete: code `part_bound`: that service does not answer.
        """
        journals = Journals(self.options.journal_dir or default_root(self.environ))
        await in_thread(journals.prepare)
        with journals.lock(key_of(task.output_path)):
            journal = await in_thread(journals.find, task.output_path)
            if journal is None or journal.run.endpoint == task.endpoint:
                return None
            if not (journal.directory / "response.json").exists():
                return None
            log = await read_log(open_store(task.output_path, self.environ))
            if not (log and log[-1].state is State.PUBLISHING):
                await in_thread(_forget_response, journal)
                return None
        if not await self.check(journal.run.endpoint):
            raise Incomplete(
                f"the part is half published from {journal.run.endpoint}, which does not answer",
                remedy="start that service again",
                code="part_bound",
            )
        return journal.run.endpoint

    async def _samples(self, task: Task) -> list[dict[str, Any]]:
        store, key = open_object(task.input_path, self.environ)
        found = await store.get_bytes(key, max_bytes=MAX_FILE_BYTES)
        if found is None:
            raise NotFound(f"the batch of part {task.part.name} is not at the output place any more")
        try:
            return list((await in_thread(decode_json, found[1]))["samples"])
        except (InputError, KeyError, TypeError):
            raise ContractViolation(f"the batch of part {task.part.name} was altered") from None

    def _service(self, endpoint: str, seconds: float) -> Service:
        token = load.token_of(self.options.token_env, self.environ)
        return Service(endpoint, token, Deadline(seconds))


class _Told:
    """The batch client's listener: samples count, notices are passed on."""

    def __init__(self, runner: GeneratorRunner, done: Callable[[int], None]) -> None:
        self._notice, self._done = runner.notice, done

    def phase(self, name: str) -> None: ...
    def submitting(self, request_id: str, resume: str) -> None: ...
    def step(self, sample: str, step: int, total: int) -> None: ...
    def bytes(self, done: int, total: int) -> None: ...

    def samples(self, done: int, total: int) -> None:
        self._done(done)

    def notice(self, text: str) -> None:
        self._notice(text)


def part_result(part: PlannedPart, manifest: Mapping[str, Any]) -> PartResult:
    """What a stored manifest says of a part."""
    missing = list(manifest.get("missing") or [])
    records = {record["name"]: record for record in manifest.get("samples") or []}
    return PartResult(
        name=part.name,
        status=PartStatus.PARTIAL if missing else PartStatus.COMPLETED,
        samples=part.samples,
        succeeded=part.samples - len(missing),
        failed=tuple(
            FailedSample(
                name=name,
                code=str(records.get(name, {}).get("code") or "unknown"),
                message=str(records.get(name, {}).get("message") or ""),
            )
            for name in missing
        ),
    )


def _forget_response(journal: Journal) -> None:
    shutil.rmtree(journal.spool, ignore_errors=True)
    (journal.directory / "proofs.jsonl").unlink(missing_ok=True)
    journal.drop_response()


def _smaller(limits: Limits, ready: Mapping[str, Any]) -> Limits:
    """What is announced as `limits` in /ready, where it makes sense, and never more than the documented defaults."""
    try:
        said = BatchLimits.model_validate(ready.get("limits"))
    except ValidationError:
        return limits
    return Limits(
        max_samples=max(1, min(limits.max_samples, said.samples)),
        max_body_bytes=max(MIN_BODY_BYTES, min(limits.max_body_bytes, said.body_bytes)),
    )
