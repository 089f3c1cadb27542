"""From an accepted response to a publication: download, verify, decode, upload, read back.

What fits into the local spool is verified completely before the output location is touched. A larger batch goes
through in windows, each verified before it is uploaded and removed after, so that the disk stays bounded as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cosmos3_serve.client.acceptance import Accepted
from cosmos3_serve.client.journal import Journal
from cosmos3_serve.client.progress import Progress
from cosmos3_serve.client.publish import UPLOADS, Publication, outcome_of
from cosmos3_serve.client.transfer import Transfer
from cosmos3_serve.contract.provenance import MediaProof
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.errors import LimitExceeded
from cosmos3_serve.publication.decode import Decoder
from cosmos3_serve.publication.expect import expectation
from cosmos3_serve.publication.pool import each
from cosmos3_serve.storage.files import in_thread

READ_BACKS = 8
SMALL_BYTES = 256 * 1024
SMALL_AT_ONCE = 4  # small downloads in the place of a large one


@dataclass
class Delivery:
    """Carries the artifacts of one batch; `phases` collects seconds of `delivery` and `publication`."""

    accepted: Accepted
    journal: Journal
    transfer: Transfer
    publication: Publication
    response: bytes
    decoder: Decoder
    progress: Progress
    concurrency: int
    spool_bytes: int
    phases: dict[str, float] = field(default_factory=lambda: {"delivery": 0.0, "publication": 0.0})
    media: list[MediaProof] = field(default_factory=list)

    async def run(self) -> None:
        """Every artifact verified and in place; provenance is the caller's last step.

        Raises:
            Contested, Sealed: another client of this batch publishes or published it.
            IntegrityError, Conflict, StorageFailure, Cosmos3RayServeError: see the modules that do the work.
            LimitExceeded: one artifact is larger than the spool may be.
        """
        done = await self._published_before()
        todo = [artifact for artifact in self.accepted.artifacts if artifact.path not in done]
        for window in list(windows(todo, self.spool_bytes)):  # refused as a whole or not at all
            await self._timed("delivery", "downloading", self._fetch_all(window))
            await self._timed("publication", "publishing", self._put_all(window))
        if not todo:
            await self._begin()

    async def _published_before(self) -> set[str]:
        """Paths that an earlier process of this run decoded and uploaded; each is read back again."""
        proofs = await in_thread(self.journal.proofs)
        done: set[str] = set()

        async def look(artifact: Artifact) -> None:
            if await self.publication.holds(artifact):
                self._proved(artifact, proofs[artifact.path])
                await in_thread(self.transfer.path_of(artifact).unlink, missing_ok=True)
                done.add(artifact.path)

        known = [artifact for artifact in self.accepted.artifacts if artifact.path in proofs]
        await each(known, min(READ_BACKS, len(known)), look)
        return done

    async def _begin(self) -> None:
        await self.publication.begin(outcome_of(self.response), self.response)

    async def _timed(self, phase: str, name: str, work: Any) -> None:
        self.progress.phase(name)
        started = time.monotonic()
        await work
        self.phases[phase] += time.monotonic() - started

    async def _fetch_all(self, window: list[Artifact]) -> None:
        # Small files wait for round trips, large ones for bandwidth.
        small = [artifact for artifact in window if artifact.bytes <= SMALL_BYTES]
        large = [artifact for artifact in window if artifact.bytes > SMALL_BYTES]
        lanes = [(large, self.concurrency), (small, self.concurrency * SMALL_AT_ONCE)]
        await each(lanes, len(lanes), lambda lane: each(lane[0], lane[1], self._fetch))

    async def _fetch(self, artifact: Artifact) -> None:
        path = await self.transfer.fetch(artifact)
        expect = expectation(artifact.path, self.accepted.args[artifact.sample])
        proof: dict[str, Any] = {}
        if expect is not None:
            found = await self.decoder.check(path, expect, name=artifact.path)
            proof = found.model_dump(mode="json")
        await in_thread(self.journal.add_proof, artifact.path, proof)
        self._proved(artifact, proof)

    def _proved(self, artifact: Artifact, proof: dict[str, Any]) -> None:
        if proof:
            self.media.append(MediaProof(**proof))

    async def _put_all(self, window: list[Artifact]) -> None:
        await self._begin()
        await each(window, UPLOADS, self._put)

    async def _put(self, artifact: Artifact) -> None:
        path = self.transfer.path_of(artifact)
        await self.publication.put(artifact, path)
        await in_thread(path.unlink, missing_ok=True)


def windows(artifacts: Iterable[Artifact], spool_bytes: int) -> Iterator[list[Artifact]]:
    """Consecutive groups that fit into the spool.

    Raises:
        LimitExceeded: code `spool_too_small`, with both numbers.
    """
    window: list[Artifact] = []
    size = 0
    for artifact in artifacts:
        if artifact.bytes > spool_bytes:
            raise LimitExceeded(
                f"artifact {artifact.path} has {artifact.bytes} bytes, the local spool may hold {spool_bytes}",
                remedy="raise --spool-bytes and run again with --resume",
                code="spool_too_small",
            )
        if size + artifact.bytes > spool_bytes:
            yield window
            window, size = [], 0
        window.append(artifact)
        size += artifact.bytes
    if window:
        yield window
