"""Ten thousand samples: what they take of memory, disk and the start. The figures that must hold are constants here."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from pathlib import Path
from typing import Any

from support.fakes import FakeClock

from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.generator.ledger.batch import accepted, sample_state
from cosmos3_serve.generator.ledger.ledger import Ledger

BATCH = 500
SAMPLES = 10_000
MEMORY_BYTES = 2_000_000  # that the ledger may grow by from the first 1,000 samples to the last
FILE_BYTES = 40_000_000  # of the database, its WAL included
IN_FLIGHT_BYTES = 400  # of memory for each sample that has not ended
START_CPU_S = 10.0  # of a start that finds all of them in flight

PROMPT = "A red ball rolls over a wooden table, slowly, in the light of the evening. " * 6
ARGS = {f"field_{n}": n * 1.5 for n in range(60)} | {"prompt": PROMPT, "negative_prompt": PROMPT}


def result(name: str, index: int) -> dict[str, Any]:
    """About what the diffusers engine says of a sample."""
    path = f"{name}/s{index}/vision.jpg"
    return {
        "wave": {"inference_id": f"{name}-{index // 4}", "coalesced_id": "c", "slot": index % 4, "inference_batch": 4},
        "compute": {"threads": 4, "machine": "x86_64", "seconds": index / 7},
        "timings": dict.fromkeys(("queue", "staging", "inference", "decode", "encode", "hash"), index / 3),
        "guardrails": {"text": {"applied": True, "checks": [{"name": "blocklist", "decision": "pass"}] * 2}},
        "outputs": {"args": {**ARGS, "seed": index}, "status": "success", "outputs": [{"files": [path]}]},
        "artifacts": [{"path": path, "bytes": 12345 + index, "sha256": f"{index:064x}"}],
    }


async def in_flight(ledger: Ledger, name: str) -> None:
    record = accepted(
        name,
        tenant="t",
        body_sha256="0" * 64,
        model="m",
        samples=[(f"s{i}", i) for i in range(BATCH)],
        engine={"engine": "diffusers"},
        detached=True,
        at=1.0,
    )
    await ledger.accept(record, {"samples": [{"name": f"s{i}", "prompt": PROMPT} for i in range(BATCH)]})


async def done(ledger: Ledger, name: str) -> None:
    for start in range(0, BATCH, 100):
        indexes = range(start, start + 100)
        await asyncio.gather(*[ledger.write(name, sample_state(i, SampleState.RUNNING, 2.0)) for i in indexes])
        ended = [sample_state(i, SampleState.SUCCEEDED, 3.0, **result(name, i)) for i in indexes]
        await asyncio.gather(*[ledger.write(name, record) for record in ended])
    await ledger.end(name, [b"{}"])
    async for samples in ledger.pages(name, results=False):
        assert samples[0].timings
    last = 0
    while page := await ledger.events(name, last):
        last = page[-1].id
    assert last == 2 * BATCH + 2


async def test_memory_and_file_of_ten_thousand_samples_one_batch_after_the_other(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, FakeClock())
    await ledger.open()
    tracemalloc.start(1)
    try:
        first = 0
        for n in range(SAMPLES // BATCH):
            await in_flight(ledger, f"r{n}")
            await done(ledger, f"r{n}")
            if (n + 1) * BATCH == 1000:
                gc.collect()
                first = tracemalloc.get_traced_memory()[0]
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - first
    finally:
        tracemalloc.stop()
    size = sum(path.stat().st_size for path in (tmp_path / ".cosmos3").glob("ledger.sqlite*"))
    print(f"{SAMPLES} samples: grown by {grown / 1e6:.2f} MB since the first 1000, files {size / 1e6:.1f} MB")
    assert grown < MEMORY_BYTES and size < FILE_BYTES
    await ledger.close()


async def test_memory_of_ten_thousand_samples_in_flight_and_the_start_that_finds_them(tmp_path: Path) -> None:
    """In flight each costs its name and its state."""
    ledger = Ledger(tmp_path, FakeClock())
    await ledger.open()
    tracemalloc.start(1)
    try:
        for n in range(SAMPLES // BATCH):
            await in_flight(ledger, f"r{n}")
            await ledger.write(f"r{n}", *[sample_state(i, SampleState.RUNNING, 2.0) for i in range(20)])
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    await ledger.close()
    ledger = Ledger(tmp_path, FakeClock())
    before = time.process_time()
    batches = await ledger.open()
    cpu = time.process_time() - before
    print(f"{SAMPLES} samples in flight: {held / SAMPLES:.0f} bytes each, {cpu:.2f} s of CPU to start")
    assert [batch.counts[SampleState.QUEUED] for batch in batches] == [BATCH - 20] * (SAMPLES // BATCH)
    assert held < IN_FLIGHT_BYTES * SAMPLES and cpu < START_CPU_S
    await ledger.close()
