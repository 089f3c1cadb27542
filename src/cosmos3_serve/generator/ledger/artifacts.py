"""Artifacts: the files that the ledger declares, by their path relative to the output root."""

from __future__ import annotations

import asyncio

from cosmos3_serve.contract.views import BatchState
from cosmos3_serve.contract.wire import is_safe_name
from cosmos3_serve.errors import NotFound
from cosmos3_serve.generator.ledger.ledger import Ledger
from cosmos3_serve.generator.ledger.outcomes import ArtifactFile
from cosmos3_serve.storage.below import is_file_below


async def declared_artifact(ledger: Ledger, path: str, tenant: str) -> ArtifactFile:
    """The tenant's file at `path`. Raises NotFound."""
    request_id, *rest = path.split("/")
    missing = NotFound("artifact not found")
    if len(rest) < 2 or not all(is_safe_name(part) for part in (request_id, *rest)):
        raise missing
    summary = ledger.find(request_id)
    if summary is None or summary.tenant != tenant or summary.state is BatchState.EXPIRED:
        raise missing
    sample = await ledger.detail(request_id, rest[0])
    found = next((a for a in sample.artifacts if a["path"] == path), None) if sample else None
    if found is None or not await asyncio.to_thread(is_file_below, ledger.output_root, path):
        raise missing
    return ArtifactFile(ledger.output_root / path, found["bytes"], found["sha256"])
