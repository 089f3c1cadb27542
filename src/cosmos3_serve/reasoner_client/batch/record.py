"""The record of a part: what was asked of whom, and what came of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cosmos3_serve import __version__
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.publication.answers import AnswersRecord, FailedQuestion
from cosmos3_serve.publication.layout import PROVENANCE, published_uri
from cosmos3_serve.queue.records import sha256_of
from cosmos3_serve.queue.work import Task
from cosmos3_serve.reasoner_client.ask import Reasoner
from cosmos3_serve.reasoner_client.batch.line import Line, has_answer

LABELS = ("random", "blockworld", "pretrained")
READY_FIELDS = ("backend", "checkpoint", "checkpoint_revision", "checkpoint_digest", "weights", "payload_verified")
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """Rows of /v1/models, and what /ready says of the checkpoint; empty where a server does not say."""

    models: list[dict[str, Any]] = field(default_factory=list)
    ready: dict[str, Any] = field(default_factory=dict)

    @property
    def weights(self) -> Any:
        said = {row.get("weights") for row in self.models} or {self.ready.get("weights")}
        label = said.pop() if len(said) == 1 else None
        return label if label in LABELS else "unknown"


async def service_of(reasoner: Reasoner, models: Collection[str]) -> ServiceFacts:
    """What the service says of the models that are asked. Nothing of it decides whether a question is asked."""
    rows: Any = []
    ready: dict[str, Any] = {}
    with suppress(Cosmos3Error):
        rows = (await reasoner.get("/v1/models")).get("data")
    with suppress(Cosmos3Error):
        ready = await reasoner.get("/ready")
    return ServiceFacts(
        [row for row in rows if isinstance(row, dict) and row.get("id") in models] if isinstance(rows, list) else [],
        {name: ready[name] for name in READY_FIELDS if name in ready},
    )


def record_of(
    task: Task, run_id: str, request: bytes, answers: Sequence[Line], artifact: Artifact, service: ServiceFacts
) -> AnswersRecord:
    failed = [
        FailedQuestion(name=line["custom_id"], code=str(line["error"]["code"]), message=str(line["error"]["message"]))
        for line in answers
        if not has_answer(line)
    ]
    uri = published_uri(task.output_path)
    return AnswersRecord(
        status="partial" if failed else "completed",
        run_id=run_id,
        request_id=task.part.request_id,
        endpoint=task.endpoint,
        input_path=task.input_path,
        output_path=task.output_path,
        published_uri=uri,
        provenance_uri=f"{uri.rstrip('/')}/{PROVENANCE}",
        questions=len(answers),
        answered=len(answers) - len(failed),
        failed=failed,
        models=service.models,
        weights=service.weights,
        service=service.ready,
        usage=_usage(answers),
        artifacts=[artifact],
        request_sha256=sha256_of(request),
        client_version=__version__,
    )


def _usage(answers: Sequence[Line]) -> dict[str, int]:
    total = dict.fromkeys(COUNTS, 0)
    for line in filter(has_answer, answers):
        usage: Mapping[str, Any] = line["response"]["body"].get("usage") or {}
        for name in COUNTS:
            count = usage.get(name)
            total[name] += count if type(count) is int else 0
    return total
