"""Continue a run from whatever a crash, Ctrl-C or a timeout left of it.

The journal says who and what; the output location says whether it is already done; the service says whether it still
knows the batch. Posting again is safe where the service keeps batches by id, and is not done elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

from cosmos3_serve.client import follow, load
from cosmos3_serve.client.acceptance import SAMPLES_FAILED
from cosmos3_serve.client.claims import claimed_body
from cosmos3_serve.client.http import Service
from cosmos3_serve.client.journal import Journal, Run, key_of
from cosmos3_serve.client.publish import Found, Publication
from cosmos3_serve.client.submission import Submission
from cosmos3_serve.contract.batch import BatchRequest, body_sha256
from cosmos3_serve.contract.jsontext import decode_json
from cosmos3_serve.contract.prepare import prepare_request
from cosmos3_serve.contract.wire import FRAMEWORK_REVISION
from cosmos3_serve.errors import Conflict, ContractViolation, Cosmos3Error, InputError, NotFound, Refusal, UsageError
from cosmos3_serve.publication.layout import REQUEST
from cosmos3_serve.publication.verify import read_bytes, read_json, verified_manifest
from cosmos3_serve.storage.files import in_thread
from cosmos3_serve.storage.location import open_store


async def resume(submission: Submission) -> dict[str, Any]:
    """The manifest of the batch that was submitted to this output path (or under this run id).

    With both, a run that was submitted to another output path is continued at this one.

    Raises:
        NotFound: code `no_such_run`: neither a journal nor a publication.
        Conflict: code `publication_exists`, `run_in_progress` or `input_differs`.
        Refusal: code `resume_unsupported`: the service keeps no batches and the response was never received.
        Cosmos3Error: as a new submission.
    """
    order = submission.order
    for line in await in_thread(submission.tidy):
        submission.progress.notice(line)
    output_path = await _output_path(submission)
    with ExitStack() as locks:
        locks.enter_context(submission.journals.lock(key_of(output_path)))
        journal = await in_thread(submission.journals.find, output_path)
        if journal is None and (journal := await _elsewhere(submission, output_path)) is not None:
            locks.enter_context(submission.journals.lock(key_of(journal.run.output_path)))
            await _move(submission, journal, output_path)
        submission.journal = journal
        if journal is None:
            if (manifest := await _published(submission, output_path)) is not None:
                return manifest
            submission.journal = journal = await _adopted(submission, output_path)
        if key_of(journal.run.output_path) != key_of(output_path):  # killed while it was moved
            await in_thread(journal.save, output_path=output_path)
        request = BatchRequest.model_validate_json(await in_thread(lambda: journal.request))
        submission.allow_time(request)
        await _same_input(submission, request)
        publication = await _publication(submission, journal, output_path)
        if await publication.look() is Found.COMPLETE:
            manifest = await publication.stored()
            if manifest.get("status") != "recovered":  # then the record of what happened to this run stays
                await in_thread(journal.remove)
            return manifest
        token = load.token_of(order.token_env, submission.environ)
        await in_thread(_apply_flags, journal, submission)
        submission.progress.submitting(journal.run.request_id, submission.resume_command)
        async with submission.service(journal.run.endpoint, token) as service:
            await _catch_up(submission, service, journal)
            return await submission.carry(service, journal, request, publication)


async def _output_path(submission: Submission) -> str:
    order = submission.order
    if order.output_path.strip():
        return load.check_output(order.output_path, submission.environ)
    if not order.run_id:
        raise UsageError("nothing says which run to resume", remedy="give --output-path or --run-id")
    journal = await in_thread(submission.journals.find_named, order.run_id)
    return journal.run.output_path


async def _publication(submission: Submission, journal: Journal, output_path: str) -> Publication:
    body = await in_thread(lambda: journal.request)
    return Publication(open_store(output_path, submission.environ), body, journal.run.request_id)


async def _elsewhere(submission: Submission, output_path: str) -> Journal | None:
    """The run that --run-id names, where it is kept for another output path than the given one."""
    if not submission.order.run_id:
        return None
    try:
        journal = await in_thread(submission.journals.find_named, submission.order.run_id)
    except NotFound:
        return None
    return journal if key_of(journal.run.output_path) != key_of(output_path) else None


async def _move(submission: Submission, journal: Journal, output_path: str) -> None:
    """Claim the new place for an unfinished run, move its record there, and give its old place back."""
    old = await _publication(submission, journal, journal.run.output_path)
    new = await _publication(submission, journal, output_path)
    found = None
    with suppress(Cosmos3Error):  # the old place may be another batch's, or out of reach: all the more reason to move
        found = await old.look()
    if found is Found.COMPLETE:
        raise Conflict(
            f"request {journal.run.request_id} is already published at {journal.run.output_path}",
            remedy="verify and print it with --resume and that --output-path",
            code="publication_exists",
        )
    if await new.look() is Found.FREE:
        request = BatchRequest.model_validate_json(await in_thread(lambda: journal.request))
        await new.prove(request.names)
    await new.claim()
    was = journal.run.output_path
    await in_thread(journal.move, output_path)
    with suppress(Cosmos3Error):
        await old.release()
    submission.progress.notice(f"request {journal.run.request_id} is published at {output_path} instead of {was}")


async def _same_input(submission: Submission, request: BatchRequest) -> None:
    """An input that is named on resume must be the one that was submitted."""
    if not submission.order.input_path.strip():
        return
    named = await load.read_batch(submission.order.input_path, submission.environ)
    if body_sha256(named) != body_sha256(request):
        raise Conflict(
            "the input differs from what was submitted to this output path",
            remedy="resume without --input-path, or submit the input to another output path",
            code="input_differs",
        )


async def _published(submission: Submission, output_path: str) -> dict[str, Any] | None:
    """The verified manifest of a complete publication, whoever made it; None where there is none."""
    place = open_store(output_path, submission.environ)
    manifest = await verified_manifest(place)
    if manifest is not None:
        published: Mapping[str, Any] = await read_json(place, REQUEST) or {}
        await _same_input(submission, BatchRequest.model_validate({"samples": [], **published}))
    return manifest


async def _adopted(submission: Submission, output_path: str) -> Journal:
    """A journal made anew from the claim at the output location: it holds the very body that was posted.

    So a run also continues on another machine, once it got as far as claiming its place.
    """
    order = submission.order
    place = open_store(output_path, submission.environ)
    claim = await claimed_body(place) or await read_bytes(place, REQUEST)
    if claim is None:
        raise NotFound(
            "there is nothing to resume: no run for this output path in the journal, and no publication",
            remedy="submit it without --resume, or name the --journal-dir that the run was started with",
            code="no_such_run",
        )
    try:
        request = await in_thread(lambda: prepare_request(decode_json(claim)))
    except InputError:
        request = BatchRequest(samples=[])
    if not request.request_id:
        raise Conflict(
            "the request at the output location is not one of ours",
            remedy="choose another --output-path; a publication is never overwritten",
            code="publication_exists",
        )
    run = Run(
        run_id=order.run_id,
        request_id=request.request_id,
        endpoint=load.endpoint_of(order.endpoint, submission.environ),
        input_path=order.input_path,
        output_path=output_path,
        expected_revision=order.expected_revision,
        ledger=False,  # until the service says otherwise
        created_at=time.time(),
    )
    return await in_thread(submission.journals.create, run, claim)


def _apply_flags(journal: Journal, submission: Submission) -> None:
    """What the resuming command line says anew counts; what it leaves out is as at the start."""
    order, run = submission.order, journal.run
    given = order.endpoint.strip()
    journal.save(
        endpoint=load.endpoint_of(given, submission.environ) if given else run.endpoint,
        allow_partial=run.allow_partial or order.allow_partial,
        expected_revision=(
            run.expected_revision if order.expected_revision == FRAMEWORK_REVISION else order.expected_revision
        ),
    )


async def _catch_up(submission: Submission, service: Service, journal: Journal) -> None:
    """Decide whether the kept response stands, and fetch the response of a batch that the service already runs."""
    failure = journal.run.failure or {}
    rerun = failure.get("code") == SAMPLES_FAILED and failure.get("retryable", False)
    # Perhaps no answer of the service at all, but the page of a gateway: the service has the true one.
    doubtful = failure.get("code") == ContractViolation.code
    kept = (journal.directory / "response.json").exists()
    if kept and not doubtful and not (rerun and not journal.run.allow_partial):
        return
    ledger, view = await follow.probe(service, journal.run.request_id)
    if not ledger and kept:
        return
    if not ledger:
        raise Refusal(
            "the service keeps no batches (it has no GET /v1/batches/{id}), so this run cannot be continued there",
            remedy=f"look for request {journal.run.request_id} below its output root; a new run needs no --resume",
            code="resume_unsupported",
        )
    await in_thread(journal.save, ledger=True, **({"state": "submitted"} if view else {}))
    if kept:
        # The same body under the same id runs again only what may be run again (docs/contract.md 7).
        await in_thread(journal.drop_response)
