"""Inputs of queues, workers that run beside each other, and what an independent reader finds at an output place."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.ledger_server import LedgerServer

from cosmos3_serve.queue.board import Figures
from cosmos3_serve.queue.run import QueueOrder


def text_samples(count: int, prefix: str = "s") -> list[dict[str, Any]]:
    """The smallest that the service makes: text, no media."""
    return [{"name": f"{prefix}{i:05}", "model_mode": "reasoner", "prompt": "p"} for i in range(count)]


@dataclass
class Site:
    tmp: Path
    server: LedgerServer

    @property
    def out(self) -> Path:
        return self.tmp / "out"

    def lines(self, count: int) -> Path:
        path = self.tmp / "samples.jsonl"
        path.write_text("".join(json.dumps(sample) + "\n" for sample in text_samples(count)))
        return path

    def limit(self, max_samples: int) -> None:
        self.server.faults.announced = {"limits": {"samples": max_samples, "body_bytes": 8 << 20}}

    def order(self, input_path: Path | str, **options: Any) -> QueueOrder:
        return QueueOrder(
            **{
                "input_path": str(input_path),
                "output_path": str(self.out),
                "endpoints": [self.server.endpoint],
                **options,
            }
        )


@dataclass
class Heard:
    """A listener that remembers."""

    notices: list[str] = field(default_factory=list)
    seen: list[Figures] = field(default_factory=list)

    def figures(self, figures: Figures) -> None:
        self.seen.append(figures)

    def notice(self, text: str) -> None:
        self.notices.append(text)


async def until(holds: Callable[[], Any | Awaitable[Any]]) -> None:
    """Wait for what another task brings about; the test's own time limit ends it."""
    while True:
        found = holds()
        if await found if isinstance(found, Awaitable) else found:
            return
        await asyncio.sleep(0.02)


def audit(out: Path) -> dict[str, Any]:
    """The index, after everything below it was read without the package: each part's record is the one that is named,
    every file has the declared bytes, and no sample is there twice or missing.

    Raises:
        AssertionError: it is not so.
    """
    index: dict[str, Any] = json.loads((out / "index.json").read_bytes())
    published: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for part in index["parts"]:
        folder = out / "parts" / part["name"]
        failed.update(sample["name"] for sample in part["failed"])
        if part["manifest_sha256"] is None:
            assert not (folder / "provenance.json").exists(), part["name"]
            continue
        record = (folder / "provenance.json").read_bytes()
        assert hashlib.sha256(record).hexdigest() == part["manifest_sha256"], part["name"]
        manifest = json.loads(record)
        response = (folder / "response.json").read_bytes()
        assert hashlib.sha256(response).hexdigest() == manifest["response_sha256"], part["name"]
        for item in manifest["artifacts"]:
            data = (folder / "artifacts" / item["path"]).read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (item["bytes"], item["sha256"]), item["path"]
        published.update(set(manifest["sample_names"]) - set(manifest["missing"]))
    assert set(published.values()) <= {1}, "a sample is published twice"
    assert not published.keys() & failed.keys(), "a sample is both"
    assert (len(published), len(failed)) == (index["succeeded"], index["failed"])
    assert {path.name for path in (out / "parts").iterdir()} >= {p["name"] for p in index["parts"] if p["succeeded"]}
    return index
