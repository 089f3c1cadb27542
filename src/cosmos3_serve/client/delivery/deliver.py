"""From an accepted response to a publication: download, verify, decode, upload, read back.

What fits into the local spool is verified completely before anything shows at the output location; a larger batch goes
through in windows, so that the disk stays bounded as well. A large file is uploaded in parts while it is downloaded: no
reader sees it before its last part, which is sent once the whole window is verified.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cosmos3_serve.client.acceptance import Accepted
from cosmos3_serve.client.delivery.transfer import Transfer
from cosmos3_serve.client.delivery.window import Window
from cosmos3_serve.client.http import Service
from cosmos3_serve.client.journal import Journal
from cosmos3_serve.client.progress import Progress
from cosmos3_serve.client.publish import UPLOADS, Early, Publication, outcome_of
from cosmos3_serve.contract.provenance import MediaProof
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.errors import LimitExceeded
from cosmos3_serve.publication.decode import Decoder
from cosmos3_serve.publication.expect import expectation
from cosmos3_serve.publication.pool import each
from cosmos3_serve.storage.files import in_thread

READ_BACKS = 8
SMALL_BYTES = 256 * 1024
EARLY_MOST = 8  # uploads that wait for the end of their window; each holds up to a part in memory
SMALL_FIRST, SMALL_MOST = 4, 16  # small downloads in the place of a large one: at first, and where that is faster


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
    small: Window
    phases: dict[str, float] = field(default_factory=lambda: {"delivery": 0.0, "publication": 0.0})
    media: list[MediaProof] = field(default_factory=list)
    early: dict[str, Early] = field(default_factory=dict)

    async def run(self) -> None:
        """Every artifact verified and in place; provenance is the caller's last step.

        Raises:
            Contested, Sealed: another client of this batch publishes or published it.
            IntegrityError, Conflict, StorageFailure, Cosmos3RayServeError: see the modules that do the work.
            LimitExceeded: one artifact is larger than the spool may be.
        """
        done = await self._published_before()
        todo = [artifact for artifact in self.accepted.artifacts if artifact.path not in done]
        try:
            parts = list(windows(todo, self.spool_bytes))  # refused as a whole or not at all
            for window in parts:
                await self._timed("delivery", "downloading", self._fetch_all(window))
                await self._timed("publication", "publishing", self._put_all(window, keep=window is parts[-1]))
        finally:
            await asyncio.gather(*(early.drop() for early in self.early.values()))
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
        small = [artifact for artifact in window if artifact.bytes <= SMALL_BYTES]
        large = [artifact for artifact in window if artifact.bytes > SMALL_BYTES]
        lanes = [(large, self.concurrency, self._fetch), (small, self.concurrency * SMALL_MOST, self._fetch_small)]
        await each(lanes, len(lanes), lambda lane: each(*lane))

    async def _fetch_small(self, artifact: Artifact) -> None:
        async with self.small.place():
            path = await self.transfer.fetch(artifact)
        await self._decode(artifact, path)

    async def _fetch(self, artifact: Artifact) -> None:
        early = None
        if len(self.early) < EARLY_MOST:
            early = self.publication.upload_early(artifact, self.transfer.part_of(artifact))
        if early is not None:
            self.early[artifact.path] = early
        path = await self.transfer.fetch(artifact, early.growing if early else None)
        await self._decode(artifact, path)

    async def _decode(self, artifact: Artifact, path: Path) -> None:
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

    async def _put_all(self, window: list[Artifact], *, keep: bool = False) -> None:
        """Publish what was verified. `keep`: no other window needs the room in the spool."""
        await self._begin()

        async def put(artifact: Artifact) -> None:
            await self._put(artifact)
            if not keep:
                await in_thread(self.transfer.path_of(artifact).unlink, missing_ok=True)

        await each(window, UPLOADS, put)

    async def _put(self, artifact: Artifact) -> None:
        path = self.transfer.path_of(artifact)
        await self.publication.put(artifact, path, self.early.pop(artifact.path, None))


async def deliver(
    service: Service,
    journal: Journal,
    publication: Publication,
    accepted: Accepted,
    response: bytes,
    decoder: Decoder,
    progress: Progress,
    *,
    concurrency: int,
    spool_bytes: int,
) -> Delivery:
    """Run the delivery of one accepted response, and tell of its bytes. Raises as `Delivery.run`."""
    done, total = 0, sum(artifact.bytes for artifact in accepted.artifacts)
    small = Window(concurrency * SMALL_FIRST, least=concurrency, most=concurrency * SMALL_MOST)

    def count(more: int) -> None:
        nonlocal done
        done += more
        progress.bytes(done, total)

    transfer = Transfer(service, journal.spool, on_bytes=count, on_trouble=small.trouble)
    delivery = Delivery(
        accepted, journal, transfer, publication, response, decoder, progress, concurrency, spool_bytes, small
    )
    await delivery.run()
    return delivery


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
