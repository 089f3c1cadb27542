"""One submission from the input file to the publication, new or resumed (docs/contract.md 3).

load ─ check ─ prove and claim the place ─ POST ─ follow ─ accept ─ download, verify, decode ─ publish ─ seal ─ forget
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cosmos3_serve.client import follow, limits, load, outcome, problem, record
from cosmos3_serve.client.acceptance import Accepted, accept
from cosmos3_serve.client.deadline import Deadline
from cosmos3_serve.client.delivery.deliver import deliver
from cosmos3_serve.client.http import Service
from cosmos3_serve.client.journal import Journal, Run, key_of
from cosmos3_serve.client.journals import Journals, default_root
from cosmos3_serve.client.progress import Progress
from cosmos3_serve.client.publish import Contested, Found, Publication, Sealed
from cosmos3_serve.client.rerun import rerun
from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.contract.defaults import require_explicit
from cosmos3_serve.contract.views import BatchState
from cosmos3_serve.contract.wire import FRAMEWORK_REVISION
from cosmos3_serve.errors import Conflict, Cosmos3Error, Cosmos3RayServeError, Incomplete, Refusal
from cosmos3_serve.publication.decode import Decoder
from cosmos3_serve.retry import FIRST_CONTACT
from cosmos3_serve.settings import MIB, TOKEN_ENV
from cosmos3_serve.storage.files import in_thread
from cosmos3_serve.storage.location import open_store

# /ready speaks for itself: a 503 is an answer, not a reason to try again.
ASK_ONCE = replace(FIRST_CONTACT, statuses=frozenset())


CONCURRENCY = 4
RELEASE_S = 10.0
WAIT_FOR_OTHER_S, LOOK_AGAIN_S = 30.0, 0.5
SPOOL_BYTES = 16 * 1024 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the caller asked for; every field as in `submit_batch`."""

    input_path: str
    output_path: str
    endpoint: str = ""
    token_env: str = TOKEN_ENV
    timeout: float | None = None  # seconds; None: they follow from the batch
    run_id: str = ""
    dry_run: bool = False
    resume: bool = False
    expected_revision: str = FRAMEWORK_REVISION
    allow_partial: bool = False
    journal_dir: Path | None = None
    concurrency: int = CONCURRENCY
    spool_bytes: int = SPOOL_BYTES


class Submission:
    """One run of the client. `journal` is None until the run is on disk."""

    def __init__(self, order: Order, progress: Progress, environ: Mapping[str, str]) -> None:
        self.order, self.progress, self.environ = order, progress, environ
        self.deadline = Deadline(order.timeout or limits.LONGEST_S)
        self.journals = Journals(order.journal_dir or default_root(environ))
        self.journal: Journal | None = None
        self.phases: dict[str, float] = {}
        self.decoder = Decoder()

    async def start(self) -> dict[str, Any]:
        """Submit a new batch; the plan with `dry_run`, else the manifest."""
        order = self.order
        request = await load.read_batch(order.input_path, self.environ)
        endpoint = load.endpoint_of(order.endpoint, self.environ)
        output_path = load.check_output(order.output_path, self.environ, connect=not order.dry_run)
        self.allow_time(request)
        plan = record.plan(
            request, run_id=order.run_id, endpoint=endpoint, input_path=order.input_path, output_path=output_path
        )
        if order.dry_run:
            return plan.model_dump(mode="json")
        token = load.token_of(order.token_env, self.environ)
        for line in await in_thread(self.tidy):
            self.progress.notice(line)
        with self.journals.lock(key_of(output_path)):
            await self._clear_way(output_path)
            request = request.model_copy(update={"request_id": request.request_id or uuid.uuid4().hex})
            body = json.dumps(request.body(), indent=2, allow_nan=False).encode()
            publication = Publication(open_store(output_path, self.environ), body, request.request_id)
            if await publication.look() is not Found.FREE:
                raise Conflict(
                    "the output location already holds this very batch",
                    remedy="continue or verify it with --resume, or choose another --output-path",
                    code="publication_exists",
                )
            async with self.service(endpoint, token) as service:
                await self.check_ready(service, request, order.expected_revision, body)
                ledger, _ = await follow.probe(service, request.request_id)
                await publication.prove(request.names)
                run = Run(
                    run_id=order.run_id,
                    request_id=request.request_id,
                    endpoint=endpoint,
                    input_path=order.input_path,
                    output_path=output_path,
                    expected_revision=order.expected_revision,
                    ledger=ledger,
                    allow_partial=order.allow_partial,
                    created_at=time.time(),
                )
                self.journal = await in_thread(self.journals.create, run, body)
                self.progress.submitting(request.request_id, self.resume_command)
                return await self.carry(service, self.journal, request, publication)

    # ---- steps that a resumed run shares ---------------------------------------------------------------------------

    @property
    def resume_command(self) -> str:
        output_path = self.journal.run.output_path if self.journal else self.order.output_path
        return outcome.resume_command(output_path, journal_dir=self.order.journal_dir, token_env=self.order.token_env)

    def _elsewhere(self, journal: Journal) -> str:
        order, run = self.order, journal.run.request_id
        return outcome.resume_command(
            outcome.ELSEWHERE, journal_dir=order.journal_dir, token_env=order.token_env, run_id=run
        )

    def service(self, endpoint: str, token: str) -> Service:
        if warning := load.plain_http_warning(endpoint):
            self.progress.notice(warning)
        return Service(endpoint, token, self.deadline, on_retry=self.progress.notice)

    def allow_time(self, request: BatchRequest) -> None:
        """Start the deadline that follows from the batch, unless one was given."""
        if self.order.timeout is None:
            self.deadline = Deadline(limits.default_timeout_s(request))

    async def check_ready(self, service: Service, request: BatchRequest, expected_revision: str, body: bytes) -> None:
        """Ask before posting: nothing is generated for a service that cannot, or whose answer would be refused.

        Raises:
            NotReady: with the reasons.
            Refusal: code `revision_mismatch`.
            ValidationFailed: code `explicit_fields_required`: the service has defaults that the client cannot know.
            LimitExceeded: code `batch_too_large`.
            Cosmos3Error: any other answer, typed.
        """
        answer = await service.call("GET", "/ready", retry=ASK_ONCE)
        if answer.status == 503:
            raise problem.not_ready(answer.body)
        if not answer.ok:
            raise answer.failure()
        ready = problem.parse(answer.body)
        revision = ready.get("framework_revision")
        if isinstance(revision, str) and revision != expected_revision:
            raise Refusal(
                f"the service runs framework revision {problem.printable(revision)!r}, expected {expected_revision!r}",
                remedy="a revision is accepted once its contract was reviewed; then pass it as --expected-revision, or "
                "set COSMOS3_EXPECTED_REVISION",
                code="revision_mismatch",
            )
        if ready.get("custom_defaults"):
            require_explicit(request.samples)
        limits.require_fit(ready, request, body)

    async def carry(
        self, service: Service, journal: Journal, request: BatchRequest, publication: Publication
    ) -> dict[str, Any]:
        """From wherever the journal stands to the manifest; afterwards the journal is gone.

        Raises:
            Incomplete: `--resume` continues.
            Cosmos3Error: it failed; request, response and reason are kept in the journal.
        """
        try:
            async with asyncio.timeout(self.deadline.left()):
                manifest = await self._to_the_end(service, journal, request, publication)
        except TimeoutError:
            error: Cosmos3Error = self.deadline.exceeded(f"carrying batch {journal.run.request_id}")
        except Cosmos3Error as raised:
            error = raised
        else:
            if manifest.get("status") != "recovered":  # then the record of what happened to this run stays
                await in_thread(journal.remove)
            return manifest
        first = not self.order.resume
        settled = await in_thread(
            outcome.settle, error, journal, self.resume_command, first=first, elsewhere=self._elsewhere(journal)
        )
        over = journal.run.state == "failed" and not isinstance(settled, Incomplete)
        if over or not journal.directory.exists():  # failed for good, or never accepted: the place is free for the next
            with suppress(Cosmos3Error, TimeoutError):
                async with asyncio.timeout(RELEASE_S):
                    await publication.release()
        raise settled

    async def _to_the_end(
        self, service: Service, journal: Journal, request: BatchRequest, publication: Publication
    ) -> dict[str, Any]:
        try:
            async with self.decoder:
                return await self._publish(service, journal, request, publication)
        except Sealed:
            manifest = await publication.stored()
            if manifest.get("status") != "completed":
                self.progress.notice(f"another client published this batch, with status {manifest.get('status')}")
            return manifest

    async def _publish(
        self, service: Service, journal: Journal, request: BatchRequest, publication: Publication
    ) -> dict[str, Any]:
        await publication.claim()
        self.decoder.warm()
        response = await in_thread(lambda: journal.response)
        if response is None:  # an empty answer is an answer, and no reason to post again
            response = await self._obtain(service, journal)
        response = await rerun(
            response, request, journal, lambda: self._obtain(service, journal), self.deadline, self.progress
        )
        while True:
            try:
                return await self._deliver(service, journal, request, publication, response)
            except Contested:
                self.progress.notice("another client is publishing another outcome of this batch; waiting for it")
                response = await self._other_outcome(journal, request, publication, response)

    async def _other_outcome(
        self, journal: Journal, request: BatchRequest, publication: Publication, ours: bytes
    ) -> bytes:
        """The response that another client of this batch is publishing, if it may be published by this run as well.

        Raises:
            Sealed: it is published.
            Incomplete: code `publication_in_progress`: after `WAIT_FOR_OTHER_S` seconds it still is not.
        """
        until = time.monotonic() + WAIT_FOR_OTHER_S
        while await publication.look() is not Found.COMPLETE:
            stored = await publication.stored_response()
            if stored is not None and stored != ours:
                with suppress(Cosmos3RayServeError):
                    await in_thread(self._accept, journal.run, request, stored)
                    await in_thread(journal.adopt_response, stored)
                    return stored
            if time.monotonic() > until:
                raise Incomplete(
                    "another client is publishing another outcome of this batch at this output path",
                    remedy="wait for it, or choose another --output-path",
                    code="publication_in_progress",
                )
            await asyncio.sleep(LOOK_AGAIN_S)
        raise Sealed

    @staticmethod
    def _accept(run: Run, request: BatchRequest, response: bytes) -> Accepted:
        return accept(request, response, expected_revision=run.expected_revision, allow_partial=run.allow_partial)

    async def _obtain(self, service: Service, journal: Journal) -> bytes:
        """Post the batch and wait for the exact bytes of its response."""
        started = time.monotonic()
        self.progress.phase("submitting")
        response = await follow.hand_over(service, await in_thread(lambda: journal.request), ledger=journal.run.ledger)
        if response is None:
            await in_thread(journal.save, state="submitted", submitted_at=time.time(), ledger=True)
            response = await self.await_response(service, journal)
        self.phases["submit_to_end"] = time.monotonic() - started
        await in_thread(journal.keep_response, response)
        return response

    async def await_response(self, service: Service, journal: Journal) -> bytes:
        """Follow an accepted batch to its end."""
        self.progress.phase("waiting")
        view = await follow.Follower(service, journal.run.request_id, self.progress).wait()
        if view.state is BatchState.EXPIRED:
            raise Cosmos3RayServeError(
                f"batch {view.request_id} ended long ago and the service's retention removed its artifacts",
                remedy="submit it again as a new batch",
                code="batch_expired",
            )
        return await follow.fetch_response(service, journal.run.request_id)

    async def _deliver(
        self, service: Service, journal: Journal, request: BatchRequest, publication: Publication, response: bytes
    ) -> dict[str, Any]:
        run = journal.run
        accepted = await in_thread(self._accept, run, request, response)
        delivery = await deliver(
            service, journal, publication, accepted, response, self.decoder, self.progress,
            concurrency=self.order.concurrency, spool_bytes=self.order.spool_bytes,
        )  # fmt: skip
        manifest = record.provenance(
            run,
            request,
            accepted,
            request_bytes=await in_thread(lambda: journal.request),
            response_bytes=response,
            media=delivery.media,
            phases=self.phases | delivery.phases,
            environ=self.environ,
        )
        data = await in_thread(manifest.to_bytes)
        clearing = asyncio.ensure_future(in_thread(journal.clear_spool))  # of gigabytes it takes as long as the seal
        try:
            return await publication.seal(data)
        finally:
            await clearing

    # ---- the place where journals live -----------------------------------------------------------------------------

    def tidy(self) -> list[str]:
        """Make the journal folders and prune what nobody touched for long. Blocking."""
        self.journals.prepare()
        return self.journals.prune()

    async def _clear_way(self, output_path: str) -> None:
        """Make room for a new run; one that can be continued is never started anew by accident.

        Raises:
            Conflict: code `unfinished_run`.
        """
        old = await in_thread(self.journals.find, output_path)
        if old is None:
            return
        if old.run.state != "failed" and old.resumable:
            raise Conflict(
                f"request {old.run.request_id} for this output path is unfinished",
                remedy=f"continue it with: {self.resume_command}; or give it up by removing {old.directory}",
                code="unfinished_run",
            )
        body = await in_thread(lambda: old.request)
        place = open_store(output_path, self.environ)
        with suppress(Conflict):  # then it is not that run's, and `look` says whose it is
            await Publication(place, body, old.run.request_id).release()
        kept = await in_thread(self.journals.set_aside, old)
        self.progress.notice(f"the earlier run, request {old.run.request_id}, is kept in {kept}")
