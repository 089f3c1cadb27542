"""How fast the client carries a finished batch to its publication, and what memory it takes for it.

The service is the tests' baseline server: real files, the public contract, no engine; so only the client is measured.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure.machine import ROOT
from measure.result import Section, demand

sys.path.insert(0, str(ROOT / "tests"))

from support import client_process
from support.baseline_server import BaselineServer
from support.s3 import LocalS3, boto

MB = 1_000_000
BUCKET = "bench"
NOTE = (
    "From the moment at which the server has made the response until the client process has ended: download, "
    "hash, decode, upload, read back and compare, provenance last. Server, client and S3 server share this "
    "machine's cores; the S3 server is moto, in a process of its own, and is the slowest part. Memory is the peak "
    "of the client process over what it had when it began. A run counts only if a second S3 client finds every "
    "file with the size and SHA-256 that the server holds, and nothing but what the provenance names."
)


@dataclass(frozen=True)
class Load:
    """`count` artifacts, `large` of them (all where 0, in `publishing`) of about `size` bytes (0: as the server makes
    them)."""

    name: str
    count: int
    size: int = 0
    large: int = 0


class TimedServer(BaselineServer):
    """Remembers when the response was ready."""

    answered = 0.0

    def response(self, request_id: str, model: str, outputs: list[dict[str, Any]]) -> dict[str, Any]:
        body = super().response(request_id, model, outputs)
        self.answered = time.perf_counter()
        return body


def publishing(
    base: Path, loads: list[Load], places: list[str], server_class: type[TimedServer] = TimedServer
) -> Section:
    """Args: `places` are of "s3" and "folder"."""
    heads = ["artifacts", "to", "seconds", "artifacts/s", "MB/s", "peak memory MB", "over its start MB"]
    rows: list[list[Any]] = [heads]
    figures: dict[str, Any] = {}
    for load in loads:
        for place in places:
            found = _one(base / f"{load.name}-{place}".replace(" ", "-"), load, place, server_class)
            figures[f"{load.name} to {place}"] = found
            keys = (("seconds", 2), ("artifacts_s", 1), ("mb_s", 1), ("peak_mb", 0), ("grown_mb", 0))
            rows.append([load.name, place, *(f"{found[key]:.{digits}f}" for key, digits in keys)])
    return Section("Publishing", NOTE, rows, figures)


def _one(base: Path, load: Load, place: str, server_class: type[TimedServer]) -> dict[str, float]:
    base.mkdir(parents=True)
    if place == "folder":
        return _carry(base, load, {}, str(base / "out"), server_class)
    with LocalS3() as s3:  # its memory goes with it
        s3.create_bucket(BUCKET)
        return _carry(base, load, s3.environ, f"s3://{BUCKET}/out/", server_class)


def _carry(
    base: Path, load: Load, storage: dict[str, str], output_path: str, server_class: type[TimedServer]
) -> dict[str, float]:
    samples = [
        {"name": f"s{i}", "prompt": "p", "num_frames": 5 if load.size else 1, "resolution": "256"}
        for i in range(load.count)
    ]
    (base / "batch.json").write_text(json.dumps(samples))
    padding = {"vision.mp4": load.size} if load.size else {}
    with server_class(base / "server", padding=padding) as server:
        options = {"input_path": str(base / "batch.json"), "output_path": output_path, "endpoint": server.endpoint}
        own = {"NPA_COSMOS3_RAY_TOKEN": server.token, "XDG_STATE_HOME": str(base / "state")}
        process = client_process.start(options, {**os.environ, **storage, **own}, base / "result.json")
        process.join(1800)
        seconds = time.perf_counter() - server.answered
        demand(process.exitcode == 0, f"the client's process ended with {process.exitcode}")
        found = client_process.outcome(base / "result.json")
        demand("manifest" in found, f"the client failed: {found.get('code')}: {found.get('detail')}")
        made = _made(server.root)
    demand(len(made) == load.count, f"the server made {len(made)} files, not {load.count}")
    published = _in_s3(storage) if storage else _in_folder(Path(output_path))
    demand(published == made, _difference(published, made))
    total = sum(size for size, _ in made.values())
    return {
        "seconds": seconds,
        "artifacts": load.count,
        "bytes": total,
        "artifacts_s": load.count / seconds,
        "mb_s": total / seconds / MB,
        "peak_mb": found["peak_kib"] * 1024 / MB,
        "grown_mb": (found["peak_kib"] - found["base_kib"]) * 1024 / MB,
    }


File = tuple[int, str]  # bytes, SHA-256


def _made(root: Path) -> dict[str, File]:
    """What the server holds, by path below its output root."""
    media = (path for path in root.rglob("vision.*") if path.is_file())
    return {path.relative_to(root).as_posix(): _of(path) for path in media}


def _in_folder(out: Path) -> dict[str, File]:
    named = json.loads((out / "provenance.json").read_text())["artifacts"]
    return _checked({item["path"]: _of(out / "artifacts" / item["path"]) for item in named}, named)


def _in_s3(storage: dict[str, str]) -> dict[str, File]:
    client = boto(storage)
    read = client.get_object(Bucket=BUCKET, Key="out/provenance.json")["Body"].read()
    named = json.loads(read)["artifacts"]
    found: dict[str, File] = {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="out/artifacts/"):
        for item in page.get("Contents", []):
            digest = hashlib.sha256()
            for chunk in client.get_object(Bucket=BUCKET, Key=item["Key"])["Body"].iter_chunks(4 * 1024 * 1024):
                digest.update(chunk)
            found[item["Key"].removeprefix("out/artifacts/")] = (item["Size"], digest.hexdigest())
    return _checked(found, named)


def _checked(found: dict[str, File], named: list[Mapping[str, Any]]) -> dict[str, File]:
    said = {item["path"]: (item["bytes"], item["sha256"]) for item in named}
    demand(found == said, f"the provenance is not what was published: {_difference(found, said)}")
    return found


def _of(path: Path) -> File:
    with path.open("rb") as stream:
        return path.stat().st_size, hashlib.file_digest(stream, "sha256").hexdigest()


def _difference(found: dict[str, File], wanted: dict[str, File]) -> str:
    other = sum(found[path] != wanted[path] for path in found.keys() & wanted.keys())
    missing, extra = len(wanted.keys() - found.keys()), len(found.keys() - wanted.keys())
    return f"{missing} files missing, {extra} too many, {other} with other bytes"
