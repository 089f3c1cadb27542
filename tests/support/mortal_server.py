"""A ledger server that dies and comes back: what it was working on is interrupted, what it had finished is kept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from support.ledger_server import Batch, LedgerServer


class MortalServer(LedgerServer):
    """`die()` interrupts every sample that has not ended; `interruptions` counts them by `request/sample`."""

    def __init__(self, root: Path, **options: Any) -> None:
        super().__init__(root, **options)
        self.interruptions: Counter[str] = Counter()
        self._lost: set[tuple[str, str]] = set()

    def die(self) -> None:
        with self.lock:
            for batch in self.ledger.values():
                for name, record in batch.samples.items():
                    if not batch.ended and record["state"] in ("queued", "running"):
                        self._lost.add((batch.request_id, name))
                        self.faults.interrupted_always.add(name)

    def submit(self, request_id: str, body: dict[str, Any], samples: list[dict[str, Any]]) -> Batch | None:
        with self.lock:
            known = self.ledger.get(request_id)
            if known is not None and known.ended:
                for name, record in known.samples.items():
                    if record.get("retryable"):
                        self._lost.discard((request_id, name))
                        self.faults.interrupted_always.discard(name)
                        self.interruptions[f"{request_id}/{name}"] += 1
        return super().submit(request_id, body, samples)

    def states(self) -> dict[str, dict[str, str]]:
        """What the service says of each sample, by request id."""
        return {
            key: {name: record["state"] for name, record in batch.samples.items()} for key, batch in self.ledger.items()
        }
