"""ResponseParts: the response of an ended batch, made a page of samples at a time (docs/contract.md 2.4).

The bytes are those of `BatchResponse.model_dump_json`. Made in one piece, a thousand samples would hold the interpreter
for long enough to stall the event loop, from whatever thread, and their objects would all be in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from cosmos3_serve.contract.batch import BatchResponse, CheckpointRecord, EngineRecord
from cosmos3_serve.contract.records import Artifact, JsonObject, SampleRecord
from cosmos3_serve.errors import SampleCode
from cosmos3_serve.generator.ledger.batch import Batch, SampleDetail
from cosmos3_serve.generator.ledger.outcomes import Service, compute_of, wave_of

SLICE = 32  # samples that are encoded while nothing else runs
_OUTPUTS = TypeAdapter(list[JsonObject])
_ARTIFACTS = TypeAdapter(list[Artifact])
_RECORDS = TypeAdapter(list[SampleRecord])
LISTS = ("outputs", "artifacts", "samples")


class ResponseParts:
    """Args:
    companies: names of the batch's samples by the inference call that they shared.
    """

    def __init__(self, batch: Batch, service: Service, companies: Mapping[str, list[str]]) -> None:
        self._batch = batch
        self._service = service
        self._companies = companies
        self._lists: dict[str, list[bytes]] = {name: [] for name in LISTS}

    def add(self, samples: Sequence[SampleDetail], requested: Sequence[Mapping[str, Any]]) -> None:
        """Add the next samples. CPU work: call from a thread.

        Args:
            requested: the samples as the client wrote them; what failed is echoed from there.
        """
        for start in range(0, len(samples), SLICE):
            some, asked = samples[start : start + SLICE], requested[start : start + SLICE]
            outputs = [_outputs(self._batch.request_id, *pair) for pair in zip(some, asked, strict=True)]
            artifacts = [Artifact(sample=s.name, **artifact) for s in some for artifact in s.artifacts]
            records = [self._record(sample) for sample in some]
            encoded = (
                _OUTPUTS.dump_json(_OUTPUTS.validate_python(outputs)),
                _ARTIFACTS.dump_json(artifacts),
                _RECORDS.dump_json(records),
            )
            for name, text in zip(LISTS, encoded, strict=True):
                if text != b"[]":
                    self._lists[name] += [b"," if self._lists[name] else b"", text[1:-1]]

    def chunks(self) -> Iterator[bytes]:
        """The response in pieces, as JSON."""
        rest = self._envelope().model_dump_json().encode("utf-8")
        for name in LISTS:  # they follow each other in this order, and what precedes them holds no free text
            head, empty, rest = rest.partition(b'"%s":[]' % name.encode("ascii"))
            yield head + empty[:-1]
            yield from self._lists[name]
            yield b"]"
        yield rest

    def _envelope(self) -> BatchResponse:
        engine, service = self._batch.engine, self._service
        return BatchResponse(
            request_id=self._batch.request_id,
            model=self._batch.model,
            batch_size=len(self._batch.samples),
            outputs=[],
            artifacts=[],
            guardrails=service.guardrails,
            max_batch_size=service.max_batch_size,
            framework_revision=service.framework_revision,
            server_source_revision=service.source_revision,
            samples=[],
            backend=service.backend,
            engine=EngineRecord(engine=engine["engine"], revision=engine["revision"]),
            checkpoint=CheckpointRecord(
                id=engine["checkpoint"],
                revision=engine["checkpoint_revision"] or None,
                digest=engine["checkpoint_digest"] or None,
            ),
            weights=engine["weights"],
        )

    def _record(self, sample: SampleDetail) -> SampleRecord:
        return SampleRecord(
            name=sample.name,
            state=sample.state,
            code=sample.code,
            message=sample.message,
            retryable=sample.retryable,
            seed=sample.seed,
            guardrails=sample.guardrails,
            timings=sample.timings,
            wave=wave_of(sample, self._companies),
            compute=compute_of(sample),
            media=sample.media,
        )


def _outputs(request_id: str, sample: SampleDetail, asked: Mapping[str, Any]) -> dict[str, Any]:
    """SampleOutputs of one sample; one without a result echoes what was asked, and the seed it had."""
    if sample.outputs is not None:
        return sample.outputs
    args = {**asked, "name": sample.name, "seed": sample.seed, "output_dir": f"{request_id}/{sample.name}"}
    status = "skip" if sample.code == SampleCode.CANCELLED else "error"
    message = f"{sample.code}: {sample.message}"
    return {"args": args, "status": status, "message": message, "stack_trace": None, "outputs": []}
