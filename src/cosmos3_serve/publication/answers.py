"""Publications of a reasoner's answers: their record, and the audit of one.

request.json             the questions, each with custom_id, url and body
artifacts/answers.jsonl  a line for each question, in their order: a response or an error
provenance.json          last: who answered, with which model, and the hashes of both
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cosmos3_serve.contract.jsontext import decode_json
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.errors import InputError, StorageFailure
from cosmos3_serve.publication.layout import ARTIFACTS, PROVENANCE, REQUEST
from cosmos3_serve.publication.verify import read_bytes
from cosmos3_serve.storage.files import in_thread
from cosmos3_serve.storage.location import Location

ANSWERS: Final = "answers.jsonl"
SCHEMA: Final = "cosmos3.reasoner.answers.v1"

Fault = Callable[[str, str, str], None]


class FailedQuestion(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    code: str
    message: str = ""


class AnswersRecord(BaseModel):
    """The provenance of one part. `completed` means that every question has an answer.

    Attributes:
        models: rows of the service's /v1/models for the models that were asked, with `weights`.
        service: what its /ready says of checkpoint, revision and digest; empty where it says nothing.
        usage: tokens, summed over the answers.
        failed: questions without an answer; `answers.jsonl` has a line for each of them, too.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    schema_version: Literal["cosmos3.reasoner.answers.v1"] = SCHEMA
    status: Literal["completed", "partial"]
    run_id: str = ""
    request_id: str
    endpoint: str
    input_path: str
    output_path: str
    published_uri: str
    provenance_uri: str
    questions: int = Field(ge=1)
    answered: int = Field(ge=1)
    failed: list[FailedQuestion] = Field(default_factory=list)
    models: list[dict[str, Any]] = Field(default_factory=list)
    weights: Literal["random", "blockworld", "pretrained", "unknown"] = "unknown"
    service: dict[str, Any] = Field(default_factory=dict)
    usage: dict[str, int] = Field(default_factory=dict)
    artifacts: list[Artifact]
    request_sha256: str
    client_version: str = ""

    def to_bytes(self) -> bytes:
        return (json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


async def check_answers(place: Location, data: bytes, names: set[str], fault: Fault) -> AnswersRecord | None:
    """Compare everything at `place` with its record; None where that is no record.

    Args:
        data: provenance.json. names: all objects of the publication.
        fault: told name, code and message of each fault.

    Raises:
        StorageFailure: storage would not tell.
    """
    try:
        record = AnswersRecord.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        fault(
            PROVENANCE, "invalid_record", f"is no provenance record: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        )
        return None
    hashes = {REQUEST: record.request_sha256} | {f"{ARTIFACTS}/{a.path}": a.sha256 for a in record.artifacts}
    for name in sorted(hashes.keys() - names):
        if await place.store.head(place.key(name)) is not None:
            raise StorageFailure(f"the listing of {place} lacks {name}, which is there", code="storage_unavailable")
        fault(name, "missing", "is missing")
    for name in sorted(names - hashes.keys() - {PROVENANCE}):
        fault(name, "undeclared", "is not declared by provenance.json")
    found: dict[str, bytes] = {}
    for name in sorted(hashes.keys() & names):
        if (content := await read_bytes(place, name)) is None:
            fault(name, "missing", "was removed while the place was audited")
            continue
        digest = (await in_thread(hashlib.sha256, content)).hexdigest()
        if digest != hashes[name]:
            fault(name, "sha256_differs", f"has SHA-256 {digest}, declared is {hashes[name]}")
        found[name] = content
    await in_thread(_compare, record, found, fault)
    return record


def _compare(record: AnswersRecord, found: dict[str, bytes], fault: Fault) -> None:
    answers = f"{ARTIFACTS}/{ANSWERS}"
    if not {REQUEST, answers} <= found.keys():
        return
    try:
        request = decode_json(found[REQUEST])
        asked = [str(item["custom_id"]) for item in request["requests"]]
    except (InputError, KeyError, TypeError):
        fault(REQUEST, "invalid_request", "holds no questions")
        return
    if request.get("request_id") != record.request_id:
        fault(PROVENANCE, "record_differs", f"has another request_id than {REQUEST}")
    lines = parse_lines(found[answers])
    if lines is None:
        fault(answers, "undecodable", "is not JSON by line")
        return
    if [line.get("custom_id") for line in lines] != asked:
        fault(answers, "coverage", f"does not hold one line for each question of {REQUEST}, in their order")
    failed = {str(line.get("custom_id")) for line in lines if line.get("error") is not None}
    silent = [line for line in lines if line.get("error") is None and not _answers(line)]
    if silent:
        fault(answers, "coverage", f"line {silent[0].get('custom_id')!r} has neither an answer nor an error")
    said = (record.questions, record.answered, {item.name for item in record.failed})
    if said != (len(asked), len(asked) - len(failed), failed):
        fault(PROVENANCE, "record_differs", f"counts other answers than {answers} holds")
    if (record.status == "completed") == bool(failed):
        fault(PROVENANCE, "status", f"says {record.status} with {len(failed)} failed questions")


def _answers(line: dict[str, Any]) -> bool:
    response = line.get("response")
    return isinstance(response, dict) and response.get("status_code") == 200 and isinstance(response.get("body"), dict)


def parse_lines(data: bytes) -> list[dict[str, Any]] | None:
    """The lines of an answers.jsonl; None where one is no JSON object."""
    try:
        lines = [decode_json(line) for line in data.split(b"\n") if line.strip()]
    except InputError:
        return None
    return lines if all(isinstance(line, dict) for line in lines) else None
