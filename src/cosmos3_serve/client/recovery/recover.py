"""Recover a batch whose client failed past inference: qualify what the engine left, publish it as `recovered`.

    original request ─ retained outputs (ledger, or a copied directory) ─ bind ─ hash ─ decode ─ publish ─ provenance

The output location is touched only after every file of every sample has qualified. The first attempt's journal is read
and never changed; nothing is posted to the service.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cosmos3_serve.client import load
from cosmos3_serve.client.journal import key_of
from cosmos3_serve.client.journals import Journals, default_root
from cosmos3_serve.client.progress import Progress, Silent
from cosmos3_serve.client.publish import Contested, Found, Publication, Sealed, outcome_of
from cosmos3_serve.client.recovery import record
from cosmos3_serve.client.recovery.first_attempt import Origin, find_origin
from cosmos3_serve.client.recovery.qualify import Finding, Qualified
from cosmos3_serve.client.recovery.sources import Fetch, RecoverOrder, Retained, gather
from cosmos3_serve.contract.native import NativeProblem
from cosmos3_serve.contract.provenance import MediaProof
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.contract.recovery import Recovery
from cosmos3_serve.errors import Conflict, Incomplete, IntegrityError, LimitExceeded, Refusal
from cosmos3_serve.publication.decode import Decoder
from cosmos3_serve.publication.expect import expectation
from cosmos3_serve.publication.layout import NATIVE
from cosmos3_serve.publication.pool import each
from cosmos3_serve.storage.files import in_thread
from cosmos3_serve.storage.location import open_store

CONCURRENCY = 2

__all__ = ["Outcome", "RecoverOrder", "recover_batch"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`manifest` is None after a dry run; `refusal` then says why it would have been refused, if so."""

    report: dict[str, Any]
    manifest: dict[str, Any] | None = None
    refusal: Refusal | None = None


def recover_batch(order: RecoverOrder, progress: Progress | None = None) -> Outcome:
    """Qualify and publish; see `RecoverOrder`.

    Raises:
        Refusal: exit 3: the outputs do not qualify; the code names the first mismatch, `errors` all of them.
        Conflict: code `publication_exists`: the output location holds a publication, also one of this very batch.
        UsageError, ValidationFailed, StorageFailure, Unreachable, Incomplete: as `submit_batch`.
    """
    return asyncio.run(_Recovery(order, progress or Silent(), os.environ).run())


@dataclass
class _Recovery:
    order: RecoverOrder
    progress: Progress
    environ: Mapping[str, str]
    phases: dict[str, float] = field(default_factory=dict)
    media: list[MediaProof] = field(default_factory=list)
    kept_bytes: int = 0

    async def run(self) -> Outcome:
        order = self.order
        journals = Journals(order.journal_dir or default_root(self.environ))
        output_path = load.check_output(order.output_path, self.environ, connect=not order.dry_run)
        origin = await find_origin(order.request_id, order.input_path, journals, self.environ)
        await in_thread(journals.prepare)
        if not order.dry_run:
            await self._require_place(origin, output_path)
        async with AsyncExitStack() as stack:
            spool = Path(stack.enter_context(_spool(journals.root)))
            started = time.monotonic()
            self.progress.phase("qualifying")
            retained = await gather(order, origin, spool, stack, self.environ, self.progress.notice)
            found = retained.found
            if order.dry_run or not found.findings:  # a report says everything; a refusal need not read gigabytes first
                await self._decode_all(found, retained.fetch, stack)
            self.phases["qualification"] = time.monotonic() - started
            recovery = record.recovery_record(origin, found, retained.kind, retained.location)
            report = record.report(
                origin, found, recovery, self.media, output_path=output_path, partial=order.allow_partial
            )
            refusal = record.refusal(found, origin.request.names, allow_partial=order.allow_partial)
            if order.dry_run:
                return Outcome(report, refusal=refusal)
            if refusal is not None:
                raise refusal
            with journals.lock(key_of(output_path)):
                manifest = await self._publish(origin, retained, recovery, output_path)
            return Outcome(report, manifest)

    # ---- every file

    async def _decode_all(self, found: Qualified, fetch: Fetch, stack: AsyncExitStack) -> None:
        decoder = await stack.enter_async_context(Decoder())
        total, done = sum(artifact.bytes for artifact in found.artifacts), 0
        for artifact in found.artifacts:
            if artifact.bytes > self.order.spool_bytes:
                raise LimitExceeded(
                    f"artifact {artifact.path} has {artifact.bytes} bytes, the spool may hold {self.order.spool_bytes}",
                    remedy="raise --spool-bytes",
                    code="spool_too_small",
                )

        async def one(artifact: Artifact) -> None:
            nonlocal done
            try:
                await self._decode(artifact, found, fetch, decoder)
            except NativeProblem as problem:
                found.findings.append(Finding(problem.code, problem.message, artifact.sample, problem.file))
            done += artifact.bytes
            self.progress.bytes(done, total)

        await each(list(found.artifacts), CONCURRENCY, one)

    async def _decode(self, artifact: Artifact, found: Qualified, fetch: Fetch, decoder: Decoder) -> None:
        try:
            path = await fetch(artifact)
        except IntegrityError as error:
            raise NativeProblem("native_media_altered", error.detail, artifact.path) from None
        try:
            expect = expectation(artifact.path, found.results[artifact.sample].args)
            if expect is not None:
                self.media.append(await decoder.check(path, expect, name=artifact.path))
        except IntegrityError as error:
            raise NativeProblem("native_media_invalid", error.detail, artifact.path) from None
        finally:
            # What fits stays for the upload; the rest is read and compared again then.
            if self.order.dry_run or self.kept_bytes + artifact.bytes > self.order.spool_bytes // 2:
                await in_thread(path.unlink, missing_ok=True)
            else:
                self.kept_bytes += artifact.bytes

    # ---- publication

    async def _publish(
        self, origin: Origin, retained: Retained, recovery: Recovery, output_path: str
    ) -> dict[str, Any]:
        self.progress.phase("publishing")
        started, found = time.monotonic(), retained.found
        publication = Publication(open_store(output_path, self.environ), origin.body, origin.request.request_id)
        natives = [f"{native.role} {native.path} {native.sha256}" for native in recovery.natives]
        try:
            await publication.claim()
            await publication.begin(outcome_of(found.response, "recovered", *natives), found.response)
        except Sealed:
            raise _published() from None
        except Contested:
            raise Incomplete(
                "another client began to publish another outcome of this batch at the output location",
                remedy="end it with ray-batch --resume, or choose another --output-path",
                code="publication_in_progress",
            ) from None

        async def put(artifact: Artifact) -> None:
            path = await retained.fetch(artifact)
            await publication.put(artifact, path)
            await in_thread(path.unlink, missing_ok=True)

        await each(retained.found.artifacts, CONCURRENCY, put)
        for native in recovery.natives:
            if native.role != "artifact":
                await publication.put_record(f"{NATIVE}/{native.path}", await retained.record(native))
        self.phases["publication"] = time.monotonic() - started
        manifest = record.provenance(
            origin,
            retained.found,
            recovery,
            run_id=self.order.run_id,
            output_path=output_path,
            endpoint=recovery.location if recovery.source == "service_ledger" else "",
            media=self.media,
            phases=self.phases,
            environ=self.environ,
        )
        data = await in_thread(manifest.to_bytes)
        return await publication.seal(data)

    async def _require_place(self, origin: Origin, output_path: str) -> None:
        """Before gigabytes are read: the place can be published to, and holds no publication."""
        publication = Publication(open_store(output_path, self.environ), origin.body, origin.request.request_id)
        if await publication.look() is Found.COMPLETE:
            raise _published()
        await publication.prove(origin.request.names)


def _published() -> Conflict:
    return Conflict(
        "the output location already holds the publication of this very batch",
        remedy="use it, or choose another --output-path; a publication is never overwritten",
        code="publication_exists",
    )


@contextmanager
def _spool(root: Path) -> Iterator[str]:
    """A private folder for media under way; what a kill left of another one is removed.

    A folder in use is locked by its process, so no clock decides.
    """
    base = root / "recover"
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as stack:
        with _locked(base):  # nobody takes a folder for an abandoned one before it is locked
            for old in base.iterdir():
                with suppress(OSError), _locked(old, fcntl.LOCK_NB):
                    shutil.rmtree(old, ignore_errors=True)
            made = stack.enter_context(tempfile.TemporaryDirectory(prefix="spool-", dir=base))
            stack.enter_context(_locked(Path(made)))
        yield made


@contextmanager
def _locked(folder: Path, how: int = 0) -> Iterator[None]:
    """Raises BlockingIOError: with LOCK_NB, another process has it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | how)
        yield
    finally:
        os.close(handle)
