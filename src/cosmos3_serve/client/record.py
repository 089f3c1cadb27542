"""Assemble `provenance.json` from what was asked, what was answered, and what was verified."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Literal, cast

from cosmos3_serve import __version__
from cosmos3_serve.client.acceptance import Accepted
from cosmos3_serve.client.journal import Run
from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.contract.provenance import MediaProof, Plan, Provenance
from cosmos3_serve.contract.records import SampleRecord, SampleState
from cosmos3_serve.contract.wire import FRAMEWORK_BACKEND
from cosmos3_serve.publication.layout import PROVENANCE, published_uri

IMAGE_ENV = "NPA_TASK_IMAGE"


def plan(request: BatchRequest, *, run_id: str, endpoint: str, input_path: str, output_path: str) -> Plan:
    """What is about to happen; the baseline's dry-run answer, key for key."""
    return Plan(
        run_id=run_id,
        endpoint=endpoint,
        input_path=input_path,
        output_path=output_path,
        model=request.model,
        sample_names=request.names,
        batch_size=len(request.samples),
    )


def provenance(
    run: Run,
    request: BatchRequest,
    accepted: Accepted,
    *,
    request_bytes: bytes,
    response_bytes: bytes,
    media: Sequence[MediaProof],
    phases: Mapping[str, float],
    environ: Mapping[str, str] | None = None,
) -> Provenance:
    """The record of a publication whose every artifact is verified and in place."""
    environ = os.environ if environ is None else environ
    response, missing = accepted.response, {verdict.name: verdict for verdict in accepted.missing}
    uri = published_uri(run.output_path)
    # A baseline service sends no records; what it does say about each sample is put into the same shape.
    records = response.samples or [
        SampleRecord(
            name=name,
            state=SampleState.FAILED if name in missing else SampleState.SUCCEEDED,
            code=missing[name].code if name in missing else None,
            message=missing[name].message if name in missing else None,
            seed=_seed(accepted, name),
        )
        for name in request.names
    ]
    known = {record.name: record.seed for record in records}
    return Provenance(
        status=cast(Literal["completed", "partial"], accepted.status),
        run_id=run.run_id,
        endpoint=run.endpoint,
        input_path=run.input_path,
        output_path=run.output_path,
        model=response.model,
        sample_names=request.names,
        batch_size=len(request.samples),
        backend=response.backend or FRAMEWORK_BACKEND,
        request_id=response.request_id,
        guardrails=response.guardrails,
        max_batch_size=response.max_batch_size,
        framework_revision=response.framework_revision,
        server_source_revision=response.server_source_revision,
        artifacts=list(accepted.artifacts),
        structured_outputs=response.outputs,
        runtime_image=environ.get(IMAGE_ENV, ""),
        published_uri=uri,
        provenance_uri=uri.rstrip("/") + "/" + PROVENANCE,
        engine=response.engine,
        checkpoint=response.checkpoint,
        weights=response.weights or "unknown",
        seeds={name: _seed(accepted, name) if known.get(name) is None else known[name] for name in request.names},
        samples=records,
        missing=list(missing),
        phases={name: round(seconds, 3) for name, seconds in phases.items()},
        media=sorted(media, key=lambda proof: proof.path),
        request_sha256=hashlib.sha256(request_bytes).hexdigest(),
        response_sha256=hashlib.sha256(response_bytes).hexdigest(),
        client_version=__version__,
    )


def _seed(accepted: Accepted, name: str) -> int | None:
    seed = accepted.args.get(name, {}).get("seed")
    return seed if type(seed) is int else None
