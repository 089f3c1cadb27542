"""Screen: from a stored content to a verdict on it, asking the probe once, and to the copy that replicas get."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import suppress
from pathlib import Path

from cosmos3_serve.errors import NotReady
from cosmos3_serve.media.refusal import Refused
from cosmos3_serve.media.sniff import Kind
from cosmos3_serve.reasoner.media import blobs
from cosmos3_serve.reasoner.media.blobs import Blob
from cosmos3_serve.reasoner.media.flight import Flights
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.probe import Prober
from cosmos3_serve.reasoner.media.store import MediaStore
from cosmos3_serve.reasoner.media.verdicts import Verdict, Verdicts

PASSING = frozenset({"media_too_slow", "media_kills_decoder"})  # may be the machine's fault, not the file's
PASSING_S = 600.0
_LEFT_S = 3600.0


class Screen:
    """
    Args:
        root: directory of the store; verdicts and copies in the making lie beside the contents.
    """

    def __init__(self, root: Path, store: MediaStore, prober: Prober, *, max_verdicts: int = 16_384) -> None:
        self._copies = root / "copies"
        self._store, self._prober = store, prober
        self._verdicts = Verdicts(root, rules=prober.rules, max_verdicts=max_verdicts)
        self._probes: Flights[tuple[str, Kind], Verdict] = Flights()
        self.probes = 0

    def open(self) -> None:
        """Take in the verdicts of an earlier life. Blocking. Raises as the store."""
        self._verdicts.open()
        try:
            self._copies.mkdir(parents=True, exist_ok=True, mode=0o700)
            for left in self._copies.iterdir():
                with suppress(OSError):  # another gateway of this machine may be making one, or clearing up too
                    if time.time() - left.stat().st_mtime > _LEFT_S:
                        left.unlink()
        except OSError as error:
            raise blobs.failure("read", error) from None

    async def judge(self, blob: Blob, kind: Kind, tenant: str = "") -> Verdict:
        """
        Raises:
            Refused: the verdict, new or remembered.
            NotReady, ServiceFailure, StorageFailure: as the prober and the store.
        """
        verdict = self._verdicts.recall(blob.sha256, kind)
        if verdict is None:
            verdict = await asyncio.to_thread(self._verdicts.read, blob.sha256, kind)
        if verdict is None:
            verdict = await self._once(blob.sha256, kind, tenant)
        return _passed(verdict)

    async def copy(self, original: Blob, kind: Kind, verdict: Verdict, tenant: str = "") -> tuple[Blob, MediaInfo]:
        """The normalised copy, in use; made again where the store has dropped it. Raises as `judge`."""
        for _ in range(3):
            assert verdict.served is not None
            sha256, info = verdict.served
            copy = await asyncio.to_thread(self._store.pin, sha256)
            if copy is not None:
                return copy, info
            verdict = _passed(await self._once(original.sha256, kind, tenant))
        raise NotReady("the media store forgets what was just converted", code="media_store_full", retry_after_s=5)

    async def _once(self, sha256: str, kind: Kind, tenant: str) -> Verdict:
        """Equal contents are looked into once, on behalf of who came first."""
        return await self._probes.join((sha256, kind), lambda: self._probe(sha256, kind, tenant))

    async def _probe(self, sha256: str, kind: Kind, tenant: str) -> Verdict:
        # Waiters come and go; the probe holds the content for itself.
        blob = await asyncio.to_thread(self._store.pin, sha256)
        if blob is None:
            raise NotReady("the media store forgets what was just stored", code="media_store_full", retry_after_s=5)
        out = self._copies / f"{sha256}.{uuid.uuid4().hex}"
        self.probes += 1
        try:
            probed = await self._prober.probe(blob.path, kind, out, tenant)
            served: tuple[str, MediaInfo] | None = None
            if probed.served is not None:
                with await asyncio.to_thread(self._store.adopt, out) as copy:
                    served = (copy.sha256, probed.served)
            verdict = Verdict(probed.info, None, served)
        except Refused as refused:
            verdict = Verdict(None, refused)
            if refused.code in PASSING:
                self._verdicts.remember(sha256, kind, verdict, PASSING_S)
                return verdict
        finally:
            blob.close()
            await asyncio.to_thread(out.unlink, missing_ok=True)
        await asyncio.to_thread(self._verdicts.write, sha256, kind, verdict)
        return verdict


def _passed(verdict: Verdict) -> Verdict:
    if verdict.refused is not None:
        # A fresh exception: one that is raised again and again would grow its traceback.
        raise Refused(**verdict.refused.as_dict())
    return verdict
