"""Parts that are questions to a reasoner: asked, kept as they are answered, published as one file of answers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cosmos3_serve.client import load
from cosmos3_serve.client.deadline import Deadline
from cosmos3_serve.client.journal import key_of
from cosmos3_serve.client.journals import Journals, default_root
from cosmos3_serve.client.publish import Found, Publication, Sealed
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.errors import (
    ContractViolation,
    Cosmos3Error,
    Cosmos3RayServeError,
    FieldError,
    Incomplete,
    InputError,
    IntegrityError,
    NotFound,
    NotReady,
    QueueFull,
    Refusal,
    Unauthorized,
    Unreachable,
)
from cosmos3_serve.publication.answers import ANSWERS, parse_lines
from cosmos3_serve.publication.layout import ARTIFACTS
from cosmos3_serve.publication.pool import each
from cosmos3_serve.publication.verify import read_bytes
from cosmos3_serve.queue.records import FailedSample, Limits, PartResult, PartStatus, PlannedPart, given_up, sha256_of
from cosmos3_serve.queue.sources import MAX_FILE_BYTES
from cosmos3_serve.queue.work import Task
from cosmos3_serve.reasoner_client.ask import DEFAULT_ENDPOINT, DEFAULT_MODEL, ENDPOINT_ENV, Reasoner
from cosmos3_serve.reasoner_client.batch import line as lines
from cosmos3_serve.reasoner_client.batch.line import Line
from cosmos3_serve.reasoner_client.batch.log import AnswerLog
from cosmos3_serve.reasoner_client.batch.questions import CHAT, PATHS, Questions, first_media
from cosmos3_serve.reasoner_client.batch.record import record_of, service_of
from cosmos3_serve.retry import Attempts, RetryPolicy
from cosmos3_serve.settings import REASONER_TOKEN_ENV
from cosmos3_serve.storage.files import in_thread
from cosmos3_serve.storage.location import Location, open_object, open_store

CHECK_S = 5.0
OUTCOME = "answers"  # the first complete answers.jsonl at a place decides; a later worker adopts it
# A full or loading service is waited for; one that fails at a question is asked once more or twice.
BUSY = RetryPolicy(attempts=40, base_s=0.5, cap_s=15.0, deadline_s=300.0)
FAILING = RetryPolicy(attempts=3, base_s=1.0, cap_s=10.0)
PART_S, QUESTION_S = 1800.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonerWork:
    """See `queue.work.Work`.

    Attributes:
        timeout: seconds for one attempt at a part; None: 1,800 and 60 for each question.
        answer_timeout: seconds without a byte of an answer.
        concurrency: questions of a part at once.
        part_size: questions of a part at most.
    """

    token_env: str = REASONER_TOKEN_ENV
    model: str = DEFAULT_MODEL
    timeout: float | None = None
    answer_timeout: float = 600.0
    concurrency: int = 16
    part_size: int = 256
    journal_dir: Path | None = None
    run_id: str = ""

    @property
    def format(self) -> Questions:
        return Questions(self.model)

    def endpoint(self, text: str, environ: Mapping[str, str]) -> str:
        found = load.endpoint_of(text, environ, env=ENDPOINT_ENV, default=DEFAULT_ENDPOINT)
        return found.removesuffix("/v1")

    def runner(self, notice: Callable[[str], None], environ: Mapping[str, str]) -> ReasonerRunner:
        return ReasonerRunner(self, notice, environ)

    def kept(self) -> dict[str, Any]:
        return {
            "token_env": self.token_env,
            "model": self.model,
            "timeout": self.timeout,
            "answer_timeout": self.answer_timeout,
            "concurrency": self.concurrency,
            "part_size": self.part_size,
            "run_id": self.run_id,
        }


@dataclass(frozen=True, slots=True)
class Part:
    """The questions of a part, and the exact bytes that hold them."""

    data: bytes
    requests: Sequence[dict[str, Any]]

    @property
    def names(self) -> list[str]:
        return [str(request["custom_id"]) for request in self.requests]

    def by_media(self) -> list[dict[str, Any]]:
        """Questions about one video follow each other, so that its replica encodes it once."""
        order: dict[str, int] = {}
        for request in self.requests:
            order.setdefault(first_media(request["body"]), len(order))
        return sorted(self.requests, key=lambda request: order[first_media(request["body"])])


@dataclass
class ReasonerRunner:
    """See `queue.work.Runner`."""

    options: ReasonerWork
    notice: Callable[[str], None] = lambda text: None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    async def run(self, task: Task, done: Callable[[int], None]) -> PartResult:
        part = await self._part(task)
        seconds = self.options.timeout or PART_S + QUESTION_S * len(part.requests)
        deadline = Deadline(seconds)
        try:
            async with asyncio.timeout(seconds):
                manifest = await self._published(task, part, done)
        except TimeoutError:
            raise deadline.exceeded("questions were asked") from None
        return result_of(task.part, manifest)

    async def give_up(self, task: Task, error: Cosmos3Error) -> PartResult:
        part = await self._part(task)
        told = {finding.field: finding.message.partition(": ") for finding in error.errors}
        failed = []
        for name in part.names:
            code, _, message = told.get(name, (error.stable_code, "", ""))
            failed.append(FailedSample(name=name, code=code, message=message))
        return given_up(task.part, error.stable_code, error.detail, failed)

    async def cancel(self, task: Task) -> None:
        """Nothing to do: a question whose connection is closed is aborted by the service."""

    async def check(self, endpoint: str) -> bool:
        try:
            async with self._reasoner(endpoint, CHECK_S) as reasoner:
                await reasoner.get("/health")
        except ContractViolation:
            return True  # another server of OpenAI's API: it answered
        except Cosmos3Error:
            return False
        return True

    async def limits(self, endpoints: Sequence[str]) -> Limits:
        return Limits(max_samples=self.options.part_size)

    # ---- one part ----------------------------------------------------------------------------------------------------

    async def _published(self, task: Task, part: Part, done: Callable[[int], None]) -> dict[str, Any]:
        place = open_store(task.output_path, self.environ)
        publication = Publication(place, part.data, task.part.request_id)
        root = self.options.journal_dir or default_root(self.environ)
        journals, key = Journals(root), key_of(task.output_path)
        await in_thread(journals.prepare)
        with ExitStack() as stack:
            stack.enter_context(journals.lock(key))
            log = AnswerLog(root / "answers" / key, sha256_of(part.data))
            if await publication.look() is Found.COMPLETE:
                manifest = await publication.stored()
            else:
                try:
                    manifest = await self._answered(task, part, place, publication, log, done)
                except Sealed:
                    manifest = await publication.stored()
            await in_thread(log.remove)
        return manifest

    async def _answered(
        self, task: Task, part: Part, place: Location, publication: Publication, log: AnswerLog,
        done: Callable[[int], None],
    ) -> dict[str, Any]:  # fmt: skip
        await publication.claim()
        data = await read_bytes(place, f"{ARTIFACTS}/{ANSWERS}")
        async with self._reasoner(task.endpoint, self.options.answer_timeout) as reasoner:
            service = await service_of(reasoner, {str(request["body"]["model"]) for request in part.requests})
            if data is None:
                kept = await in_thread(log.open)
                data = await self._asked(task, part, reasoner, log, kept, done)
                if not any(map(lines.has_answer, _lines(data, part))):
                    await publication.release()
                    raise _none_answered(_lines(data, part))
                await publication.begin(OUTCOME, None)
                path = await in_thread(log.publishable, data)
                try:
                    await publication.put(_artifact(data), path)
                except IntegrityError as error:
                    if error.stable_code != "output_occupied":
                        raise
                    stored = await read_bytes(place, f"{ARTIFACTS}/{ANSWERS}")
                    if stored is None or stored == data:
                        raise
                    data = stored  # another worker was first
            else:
                await publication.begin(OUTCOME, None)
        record = record_of(task, self.options.run_id, part.data, _lines(data, part), _artifact(data), service)
        return await publication.seal(record.to_bytes())

    async def _asked(
        self, task: Task, part: Part, reasoner: Reasoner, log: AnswerLog, kept: dict[str, Line],
        done: Callable[[int], None],
    ) -> bytes:  # fmt: skip
        """answers.jsonl, once every question has an answer or a final failure.

        Raises:
            Incomplete: code `samples_failed`: questions failed that may be asked again.
            Cosmos3Error: the service would take none of them now.
        """
        passing: dict[str, Cosmos3Error] = {}
        writing = asyncio.Lock()
        done(len(kept))

        async def ask(request: dict[str, Any]) -> None:
            name = str(request["custom_id"])
            try:
                line = lines.answered(name, await self._posted(reasoner, request))
            except (Unauthorized, Refusal, Unreachable, QueueFull, NotReady):
                raise
            except InputError as error:
                line = lines.failed(name, error)
            except Cosmos3Error as error:
                passing[name] = error
                return
            async with writing:
                await in_thread(log.add, line)
                kept[name] = line
                done(len(kept) + len(passing))

        left = [request for request in part.by_media() if request["custom_id"] not in kept]
        await each(left, min(self.options.concurrency, max(1, len(left))), ask)
        if passing and not task.partial:
            raise Incomplete(
                f"{len(passing)} of {len(part.requests)} questions failed and may be asked again",
                code="samples_failed",
                errors=_findings(passing),
            )
        found = kept | {name: lines.failed(name, error) for name, error in passing.items()}
        return b"".join(json.dumps(found[name], allow_nan=False).encode() + b"\n" for name in part.names)

    async def _posted(self, reasoner: Reasoner, request: dict[str, Any]) -> Any:
        raw, path = json.dumps(request["body"]).encode(), str(request.get("url", CHAT))
        _, holds = PATHS[path]
        busy, failing = Attempts(BUSY), Attempts(FAILING)
        while True:
            try:
                posted = await reasoner.post(path, raw)
                if not isinstance(posted.body.get(holds), list):
                    raise ContractViolation(f"the answer has no {holds}")
                return posted
            except (QueueFull, NotReady) as error:
                wait, why = busy.wait_s(error.retry_after_s), error
            except InputError:
                raise
            except Cosmos3Error as error:
                wait, why = failing.wait_s(error.retry_after_s), error  # type: ignore[assignment]
            if wait is None:
                raise why
            await asyncio.sleep(wait)

    async def _part(self, task: Task) -> Part:
        store, key = open_object(task.input_path, self.environ)
        found = await store.get_bytes(key, max_bytes=MAX_FILE_BYTES)
        if found is None:
            raise NotFound(f"the questions of part {task.part.name} are not at the output place any more")
        if sha256_of(found[1]) != task.part.sha256:
            raise ContractViolation(f"the questions of part {task.part.name} were altered")
        return Part(found[1], (await in_thread(json.loads, found[1]))["requests"])

    def _reasoner(self, endpoint: str, timeout_s: float) -> Reasoner:
        return Reasoner(
            endpoint, token_env=self.options.token_env, model=self.options.model, timeout_s=timeout_s,
            environ=self.environ,
        )  # fmt: skip


def result_of(part: PlannedPart, manifest: Mapping[str, Any]) -> PartResult:
    """What a stored record says of a part."""
    failed = list(manifest.get("failed") or [])
    return PartResult(
        name=part.name,
        status=PartStatus.PARTIAL if failed else PartStatus.COMPLETED,
        samples=part.samples,
        succeeded=part.samples - len(failed),
        failed=tuple(FailedSample.model_validate(item) for item in failed),
    )


def _lines(data: bytes, part: Part) -> list[Line]:
    found = parse_lines(data)
    if found is None or [line.get("custom_id") for line in found] != part.names:
        raise IntegrityError(f"{ANSWERS} at the output place does not hold the answers of this part")
    return found


def _artifact(data: bytes) -> Artifact:
    return Artifact(sample=OUTCOME, path=ANSWERS, bytes=len(data), sha256=sha256_of(data))


def _none_answered(found: Sequence[Line]) -> Cosmos3RayServeError:
    said = [(line["custom_id"], line["error"]) for line in found]
    return Cosmos3RayServeError(
        f"none of {len(found)} questions has an answer",
        code="samples_failed",
        errors=[FieldError(str(name), f"{error['code']}: {error['message']}") for name, error in said],
    )


def _findings(failed: Mapping[str, Cosmos3Error]) -> list[FieldError]:
    return [FieldError(name, f"{error.stable_code}: {error.detail}") for name, error in failed.items()]
