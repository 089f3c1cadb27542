"""What the probe said about a content, kept beside it: a known content is never probed twice, a bad one neither."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmos3_serve.media.refusal import Refused
from cosmos3_serve.media.sniff import Kind
from cosmos3_serve.reasoner.media import blobs
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.storage import files


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    Args:
        info: what the content is; None when it was refused.
        refused: why it is not let in.
        served: SHA-256 of the normalised copy that replicas get instead, and what that is.
    """

    info: MediaInfo | None = None
    refused: Refused | None = None
    served: tuple[str, MediaInfo] | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "info": self.info and self.info.as_dict(),
            "refused": self.refused and self.refused.as_dict(),
            "served": self.served and [self.served[0], self.served[1].as_dict()],
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Verdict:
        served = value["served"]
        return cls(
            MediaInfo.from_dict(value["info"]) if value["info"] else None,
            Refused(**value["refused"]) if value["refused"] else None,
            (served[0], MediaInfo.from_dict(served[1])) if served else None,
        )


class Verdicts:
    """
    Args:
        root: directory, shared by the gateways of one machine.
        rules: of the limits and rules in force; verdicts made under others do not count.
        max_verdicts: kept, good and bad ones together; the least recently used go first.
    """

    def __init__(
        self, root: Path, *, rules: str, max_verdicts: int = 16_384, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._root, self._rules, self._max = root / "verdicts", rules, max_verdicts
        self._lock = threading.Lock()
        self._clock = clock
        self._known: OrderedDict[tuple[str, Kind], tuple[Verdict | None, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def open(self) -> None:
        """Take note of what is on disk, newest last. Blocking. Raises as the store."""
        found: list[tuple[float, str, Kind]] = []
        try:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
            for path in self._root.iterdir():
                sha256, _, kind = path.name.removesuffix(".json").partition(".")
                with suppress(OSError):
                    if kind in ("image", "video"):
                        found.append((path.stat().st_mtime, sha256, "image" if kind == "image" else "video"))
                    elif not files.is_part(path.name):
                        path.unlink()
        except OSError as error:
            raise blobs.failure("read", error) from None
        with self._lock:
            for _, sha256, kind in sorted(found):
                self._known.setdefault((sha256, kind), (None, math.inf))
            self._trim()

    def recall(self, sha256: str, kind: Kind) -> Verdict | None:
        """From memory; never blocks."""
        with self._lock:
            verdict, until = self._known.get((sha256, kind), (None, 0.0))
            if verdict is None or self._clock() >= until:
                return None
            self._known.move_to_end((sha256, kind))
            return verdict

    def read(self, sha256: str, kind: Kind) -> Verdict | None:
        """From memory or from disk (another gateway's, or an earlier life's). Blocking."""
        verdict = self.recall(sha256, kind)
        if verdict is not None:
            return verdict
        try:
            value = json.loads(self._path(sha256, kind).read_bytes())
            verdict = Verdict.from_dict(value) if value["rules"] == self._rules else None
        except (OSError, ValueError, KeyError, TypeError):
            return None  # absent, torn or of another version: the probe decides again
        if verdict is not None:
            self.remember(sha256, kind, verdict)
        return verdict

    def write(self, sha256: str, kind: Kind, verdict: Verdict) -> None:
        """Blocking. A disk that fails costs another probe later, not the request."""
        self.remember(sha256, kind, verdict)
        path = self._path(sha256, kind)
        part = files.part_of(path)
        with suppress(OSError):
            try:
                part.write_text(json.dumps({"rules": self._rules, **verdict.as_dict()}))
                part.replace(path)
            finally:
                files.discard(part)

    def remember(self, sha256: str, kind: Kind, verdict: Verdict, for_s: float = math.inf) -> None:
        """In memory only: what may turn out otherwise in a quieter hour."""
        with self._lock:
            self._known[sha256, kind] = (verdict, self._clock() + for_s)
            self._known.move_to_end((sha256, kind))
            self._trim()

    def _trim(self) -> None:
        while len(self._known) > self._max:
            (sha256, kind), _ = self._known.popitem(last=False)
            with suppress(OSError):
                self._path(sha256, kind).unlink(missing_ok=True)

    def _path(self, sha256: str, kind: Kind) -> Path:
        return self._root / f"{sha256}.{kind}.json"
