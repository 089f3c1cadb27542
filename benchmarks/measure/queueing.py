"""A queue of many tiny samples: memory, the size of its file, what a restart costs, and two workers on one queue.

The service is the tests' ledger server: real HTTP, the public contract and ours, no engine.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from measure.machine import ROOT
from measure.result import Section, demand

sys.path.insert(0, str(ROOT / "tests"))

from support import queue_process
from support.ledger_server import LedgerServer
from support.queues import audit, text_samples
from support.s3 import LocalS3, boto

MB = 1_000_000
BUCKET = "bench-queue"
NOTE = (
    "One worker process, two parts of up to 1,024 samples at once, into a folder; service and worker share this "
    "machine's cores. Memory is the peak of the worker's process over what it had when it began. A run counts only if "
    "a reader without the package finds every sample published once, with the bytes that are declared, and the "
    "service made each once. The queue file is the largest that was seen, with its write-ahead log."
)
RESUMED = (
    "The worker was killed (SIGKILL) when half of the parts had ended, then started again. CPU until its first part "
    "began: loading what is not loaded yet, reading the queue file, comparing the input with the plan."
)
SHARED = (
    "Two worker processes with a state folder each, so as on two machines, one output place, parts of up to 256 "
    "samples; the last columns count parts. S3 is moto on this machine, which is slow."
)


def queueing(base: Path, counts: list[int]) -> list[Section]:
    rows: list[list[Any]] = [
        ["samples", "parts", "seconds", "samples/s", "worker CPU s", "over its start MB", "queue file MB"]
    ]
    figures: dict[str, Any] = {}
    for count in counts:
        found = _alone(base / f"alone-{count}", count)
        figures[str(count)] = found
        rows.append([count, found["parts"], f"{found['seconds']:.1f}", f"{count / found['seconds']:.0f}",
                     f"{found['cpu_s']:.1f}", f"{found['grown_mb']:.0f}", f"{found['file_mb']:.2f}"])  # fmt: skip
    resumed = _killed(base / "killed", counts[-1])
    shared: list[list[Any]] = [
        ["samples", "to", "parts", "seconds", "by the first", "by the second", "generated twice"]
    ]
    with LocalS3() as s3:
        for count, to in ((counts[-1], None), (counts[0], s3)):
            name = "S3" if to else "a folder"
            found = figures[f"two, {count} to {name}"] = _two(base / f"two-{count}", count, to)
            shared.append([count, name, found["parts"], f"{found['seconds']:.1f}", *found["shares"], found["twice"]])
    return [
        Section("One worker", NOTE, rows, figures),
        Section(
            "Killed and started again",
            RESUMED,
            [["samples", "CPU s until its first part", "generated twice"],
             [counts[-1], f"{resumed['ready_cpu_s']:.2f}", resumed["twice"]]],
            resumed,
        ),
        Section("Two workers", SHARED, shared),
    ]  # fmt: skip


def _options(base: Path, server: LedgerServer, count: int) -> dict[str, Any]:
    path = base / "samples.jsonl"
    path.write_text("".join(json.dumps(sample) + "\n" for sample in text_samples(count)))
    return {"input_path": str(path), "output_path": str(base / "out"), "endpoints": [server.endpoint]}


def _environ(base: Path, server: LedgerServer, **more: str) -> dict[str, str]:
    return {**os.environ, "NPA_COSMOS3_RAY_TOKEN": server.token, "XDG_STATE_HOME": str(base / "state"), **more}


def _ended(process: Any, result: Path) -> dict[str, Any]:
    process.join(3600)
    demand(process.exitcode == 0, f"the worker's process ended with {process.exitcode}")
    found = queue_process.outcome(result)
    demand("index" in found, f"the worker failed: {found.get('code')}: {found.get('detail')}")
    return found


def _alone(base: Path, count: int) -> dict[str, Any]:
    base.mkdir(parents=True)
    with LedgerServer(base / "server", steps=1) as server:
        began = time.perf_counter()
        process = queue_process.start(_options(base, server, count), _environ(base, server), base / "result.json")
        largest = 0
        while process.is_alive():
            largest = max(largest, _file_bytes(base))
            time.sleep(0.2)
        found = _ended(process, base / "result.json")
        seconds = time.perf_counter() - began
        _demand_once(server, count)
    index = audit(base / "out")
    demand(index["succeeded"] == count, f"{index['succeeded']} of {count} samples succeeded")
    return {
        "seconds": seconds,
        "parts": len(index["parts"]),
        "cpu_s": found["cpu_s"],
        "grown_mb": (found["peak_kib"] - found["base_kib"]) * 1024 / MB,
        "file_mb": largest / MB,
    }


def _file_bytes(base: Path) -> int:
    """Of the queue file with its write-ahead log."""
    found = 0
    for path in (base / "state/cosmos3/queues").glob("*/queue.sqlite*"):
        with suppress(FileNotFoundError):
            found += path.stat().st_size
    return found


def _killed(base: Path, count: int) -> dict[str, Any]:
    base.mkdir(parents=True)
    with LedgerServer(base / "server", steps=1) as server:
        options, environ = _options(base, server, count), _environ(base, server)
        process = queue_process.start(options, environ, base / "first.json")
        results = base / "out/.cosmos3-queue/results"
        parts = -(-count // 1024)
        while len(list(results.glob("*.json")) if results.is_dir() else []) < parts // 2:
            demand(process.is_alive(), "the worker ended before it was killed")
            time.sleep(0.05)
        process.kill()
        process.join()
        found = _ended(queue_process.start(options, environ, base / "second.json"), base / "second.json")
        twice = _demand_once(server, count)
    audit(base / "out")
    return {"ready_cpu_s": found["ready_cpu_s"], "cpu_s": found["cpu_s"], "twice": twice}


def _two(base: Path, count: int, s3: LocalS3 | None) -> dict[str, Any]:
    base.mkdir(parents=True)
    with LedgerServer(base / "server", steps=1) as server:
        server.faults.announced = {"limits": {"samples": 256, "body_bytes": 8 << 20}}
        options, storage = _options(base, server, count), s3.environ if s3 else {}
        if s3:
            s3.create_bucket(BUCKET)
            options["output_path"] = f"s3://{BUCKET}/out/"
        began, processes = time.perf_counter(), []
        for name in ("a", "b"):
            environ = _environ(base / name, server, **storage)
            processes.append(queue_process.start(options, environ, base / f"{name}.json"))
        found = [_ended(process, base / f"{name}.json") for process, name in zip(processes, "ab", strict=True)]
        seconds = time.perf_counter() - began
        twice = _demand_once(server, count)
    demand(found[0]["index"] == found[1]["index"], "the two workers returned different indexes")
    index = audit(base / "out") if s3 is None else _audit_records(s3, found[0]["index"])
    demand(index["succeeded"] == count, f"{index['succeeded']} of {count} samples succeeded")
    return {"seconds": seconds, "parts": len(index["parts"]), "twice": twice, "shares": _shares(base)}


def _audit_records(s3: LocalS3, index: dict[str, Any]) -> dict[str, Any]:
    """The index, if another S3 client finds the record of each part as the index names it, and no other part."""
    client = boto(s3.environ)
    stored: dict[str, Any] = json.loads(client.get_object(Bucket=BUCKET, Key="out/index.json")["Body"].read())
    demand(stored == index, "the stored index is not what the workers returned")
    for part in stored["parts"]:
        data = client.get_object(Bucket=BUCKET, Key=f"out/parts/{part['name']}/provenance.json")["Body"].read()
        demand(hashlib.sha256(data).hexdigest() == part["manifest_sha256"], f"part {part['name']} has another record")
    listed = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="out/parts/")
    names = {item["Key"].split("/")[2] for page in listed for item in page.get("Contents", [])}
    demand(names == {part["name"] for part in stored["parts"]}, "there are parts that the index does not name")
    return stored


def _shares(base: Path) -> list[int]:
    """Parts that each worker brought to an end: its queue file names the service only for those."""
    found = []
    for name in ("a", "b"):
        (path,) = (base / name / "state").rglob("queue.sqlite")
        with sqlite3.connect(path) as database:
            found.append(int(database.execute("SELECT count(*) FROM parts WHERE endpoint != ''").fetchone()[0]))
    return found


def _demand_once(server: LedgerServer, count: int) -> int:
    twice = sum(times > 1 for times in server.generated.values())
    demand(len(server.generated) == count, f"the service made {len(server.generated)} of {count} samples")
    demand(twice == 0, f"{twice} samples were generated twice")
    return twice
