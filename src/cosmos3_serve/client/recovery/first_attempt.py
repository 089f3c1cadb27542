"""The original request of a batch that was never published, and what its client recorded. Nothing is changed here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cosmos3_serve.client import load
from cosmos3_serve.client.journal import Journal
from cosmos3_serve.client.journals import Journals
from cosmos3_serve.contract.batch import BatchRequest, body_sha256
from cosmos3_serve.contract.jsontext import decode_json
from cosmos3_serve.contract.prepare import prepare_request
from cosmos3_serve.contract.recovery import FirstAttempt
from cosmos3_serve.errors import Conflict, InputError, ServiceFailure, UsageError
from cosmos3_serve.storage.files import in_thread


@dataclass(frozen=True, slots=True)
class Origin:
    """What was asked.

    Attributes:
        body: the exact POST body from the journal, or one made from the batch file in the same form.
        attempt: None where there is no journal.
    """

    request: BatchRequest
    body: bytes
    source: Literal["journal", "batch_file"]
    input_path: str
    attempt: FirstAttempt | None = None


async def find_origin(
    request_id: str, input_path: str, journals: Journals, environ: Mapping[str, str] | None = None
) -> Origin:
    """The original request by its id (or the run's), from the client's journal or from the batch file.

    Raises:
        UsageError: code `no_original_request`: neither is there; or the batch file carries no id and none was given.
        Conflict: code `input_differs`: the batch file is not what the journal says was posted.
        ValidationFailed, NotFound, StorageFailure: the batch file cannot be read.
    """
    named = await load.read_batch(input_path, environ) if input_path.strip() else None
    request_id = request_id or (named.request_id if named else "")
    if not request_id:
        raise UsageError("nothing says which request to recover", remedy="give --request-id")
    journal = await in_thread(journals.recorded, request_id)
    if journal is not None:
        origin = await in_thread(_from_journal, journal)
        if named is not None and body_sha256(named) != body_sha256(origin.request):
            raise Conflict(
                "the batch file is not what was posted under this request id",
                remedy="leave out --input-path: the journal holds the exact request",
                code="input_differs",
            )
        return origin
    if named is None:
        raise UsageError(
            f"there is no journal of {request_id!r} here, and no batch file was given",
            remedy="give --input-path with the original batch, or --journal-dir where the first attempt kept its runs",
            code="no_original_request",
        )
    if named.request_id and named.request_id != request_id:
        raise Conflict(
            "the batch file carries another request id than --request-id",
            remedy="give one of them",
            code="input_differs",
        )
    request = named.model_copy(update={"request_id": request_id})
    body = json.dumps(request.body(), indent=2, allow_nan=False).encode()
    return Origin(request, body, "batch_file", input_path.strip())


def _from_journal(journal: Journal) -> Origin:
    body, run = journal.request, journal.run
    try:
        request = prepare_request(decode_json(body))
    except InputError:
        request = BatchRequest(samples=[])
    if request.request_id != run.request_id:
        raise ServiceFailure(
            f"the journal {journal.directory.name} is damaged: its request is not the one of its run",
            remedy="give the original batch with --input-path and another --journal-dir",
            code="journal_damaged",
        )
    response, failure = journal.response, run.failure or {}
    attempt = FirstAttempt(
        state=run.state,
        run_id=run.run_id,
        request_id=run.request_id,
        endpoint=run.endpoint,
        expected_revision=run.expected_revision,
        created_at=run.created_at,
        submitted_at=run.submitted_at,
        ended_at=run.ended_at,
        failure_code=_text(failure.get("code")),
        failure_detail=_text(failure.get("detail")),
        response_bytes=None if response is None else len(response),
        response_sha256=None if response is None else hashlib.sha256(response).hexdigest(),
        record_sha256=hashlib.sha256((journal.directory / "run.json").read_bytes()).hexdigest(),
    )
    return Origin(request, body, "journal", run.input_path, attempt)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
