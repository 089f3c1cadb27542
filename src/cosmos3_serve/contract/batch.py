"""One door to everything about a batch: the request, its parser, the response and its records."""

from __future__ import annotations

from cosmos3_serve.contract.parse import parse_batch
from cosmos3_serve.contract.records import (
    Artifact,
    SampleOutput,
    SampleOutputs,
    SampleRecord,
    SampleState,
    SampleWave,
)
from cosmos3_serve.contract.request import BatchRequest, body_sha256
from cosmos3_serve.contract.response import BatchResponse, CheckpointRecord, EngineRecord

__all__ = [
    "Artifact",
    "BatchRequest",
    "BatchResponse",
    "CheckpointRecord",
    "EngineRecord",
    "SampleOutput",
    "SampleOutputs",
    "SampleRecord",
    "SampleState",
    "SampleWave",
    "body_sha256",
    "parse_batch",
]
