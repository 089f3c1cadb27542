"""kill -9 at seeded points of the whole way, over S3 that fails on its own: `resume` always ends in one publication.

A point is the n-th request that the killed client makes, to the service or to storage, so the same seed kills in the
same phase whatever the machine's speed. Checked throughout: provenance.json is never written before everything that it
declares is in place, one batch is posted under one id, and no sample is generated twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support import client_process
from support.flaky import Fault, FaultPlan, FlakyProxy
from support.ledger_server import LedgerServer
from support.s3 import LocalS3, boto

from cosmos3_serve.client.journals import Journals
from cosmos3_serve.storage.store import PROBES

SAMPLES = [
    {"name": "image", "prompt": "p", "num_frames": 1, "resolution": "256", "seed": 3},
    {"name": "video", "prompt": "q", "num_frames": 5, "resolution": "256"},
    {"name": "text", "model_mode": "reasoner", "prompt": "r"},
]
BUCKET = "kill"


@dataclass
class Tripwire:
    """Counts what the client does; at the armed count the client dies in the middle of it."""

    count: int = 0
    at: int | None = None
    delay_s: float = 0.0
    process: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def step(self) -> None:
        with self.lock:
            self.count += 1
            if self.count == self.at:
                threading.Timer(self.delay_s, self.process.kill).start()

    def arm(self, at: int | None, delay_s: float) -> None:
        with self.lock:
            self.count, self.at, self.delay_s = 0, at, delay_s


class Trace(list[Any]):
    """The service's request log, wired."""

    def __init__(self, wire: Tripwire) -> None:
        super().__init__()
        self.wire = wire

    def append(self, item: Any) -> None:
        super().append(item)
        self.wire.step()


@dataclass
class World:
    """One service, one flaky way to storage, one output prefix."""

    s3: LocalS3
    server: LedgerServer
    proxy: FlakyProxy
    wire: Tripwire
    seed: int
    tmp: Path
    early: list[str] = field(default_factory=list)

    @property
    def prefix(self) -> str:
        return f"out-{self.seed}"

    @property
    def environ(self) -> dict[str, str]:
        own = {"XDG_STATE_HOME": str(self.tmp / "state"), "NPA_COSMOS3_RAY_TOKEN": self.server.token}
        return {**os.environ, **self.s3.environ, "AWS_ENDPOINT_URL": self.proxy.url, **own}

    def objects(self) -> dict[str, bytes]:
        client = boto(self.s3.environ)
        listed = client.list_objects_v2(Bucket=BUCKET, Prefix=self.prefix + "/").get("Contents", [])
        return {
            item["Key"].removeprefix(self.prefix + "/"): client.get_object(Bucket=BUCKET, Key=item["Key"])[
                "Body"
            ].read()
            for item in listed
            if f"/{PROBES}/" not in item["Key"]  # a later proof removes what a killed one left
        }

    def run(self, at: int | None, delay_s: float = 0.0) -> dict[str, Any] | None:
        """One client process, killed `delay_s` after its request number `at`; None when it did not get to its end."""
        result = self.tmp / "result.json"
        result.unlink(missing_ok=True)
        journals = Journals(self.tmp / "state/cosmos3/batches")
        journals.prepare()
        resume = bool(journals.all()) or "provenance.json" in self.objects()
        options = {
            "input_path": str(self.tmp / "batch.json"),
            "output_path": f"s3://{BUCKET}/{self.prefix}/",
            "endpoint": self.server.endpoint,
            "resume": resume,
            "timeout": 100,
            "concurrency": 2,
        }
        self.wire.arm(at, delay_s)
        process = self.wire.process = client_process.start(options, self.environ, result)
        process.join(110)
        assert process.exitcode is not None, "the client hangs"
        return client_process.outcome(result) if result.exists() else None

    def check_true(self, when: str) -> None:
        """If provenance.json is there, everything it declares must be, byte for byte."""
        found = self.objects()
        if "provenance.json" not in found:
            return
        manifest = json.loads(found["provenance.json"])
        if hashlib.sha256(found.get("response.json", b"")).hexdigest() != manifest["response_sha256"]:
            self.early.append(f"{when}: response.json")
        for item in manifest["artifacts"]:
            data = found.get(f"artifacts/{item['path']}", b"")
            if (len(data), hashlib.sha256(data).hexdigest()) != (item["bytes"], item["sha256"]):
                self.early.append(f"{when}: {item['path']}")


@pytest.fixture
def world(request: pytest.FixtureRequest, s3_server: LocalS3, tmp_path: Path) -> Iterator[World]:
    seed: int = request.param
    s3_server.create_bucket(BUCKET)
    (tmp_path / "batch.json").write_text(json.dumps(SAMPLES))
    wire, faults = Tripwire(), FaultPlan(seed, rate=0.1, at_most=2)
    holder: list[World] = []

    def plan(method: str, target: str, nth: int) -> Fault | None:
        wire.step()
        if method == "PUT" and target.partition("?")[0].endswith("provenance.json"):
            # The moment before it becomes visible: what it will declare must already be in place.
            found = holder[0].objects()
            response = (
                json.loads(found["response.json"]) if "response.json" in found else {"artifacts": [{"path": "?"}]}
            )
            missing = [a["path"] for a in response["artifacts"] if f"artifacts/{a['path']}" not in found]
            holder[0].early.extend(f"at its PUT: {path}" for path in missing)
        return faults(method, target, nth)

    with (
        LedgerServer(tmp_path / "server", steps=2, step_s=0.01, padding={"output.safetensors": 400_000}) as server,
        FlakyProxy(s3_server.endpoint, plan, delay_s=0.01) as proxy,
    ):
        server.log = Trace(wire)
        server.faults.chunk_delay_s = 0.005
        holder.append(World(s3_server, server, proxy, wire, seed, tmp_path))
        yield holder[0]


def kill_and_resume(world: World, kills: int) -> None:
    rng, done, top = random.Random(world.seed), 0, 28  # a whole run makes about 30 requests, a resumed one at least 18
    for _ in range(3 * kills):
        at, delay_s = rng.randint(1, top), rng.choice([0.0, 0.0, rng.uniform(0, 0.05)])
        found = world.run(at, delay_s)
        assert found is None or "manifest" in found, found
        world.check_true(f"kill {done} at request {at}")
        done, top = done + (found is None), 16
        if done == kills:
            break
    assert done == kills
    found = world.run(None)
    assert found is not None and "manifest" in found, found
    world.check_true("end")
    manifest = found["manifest"]
    objects = world.objects()
    assert world.early == []
    assert world.proxy.faults > 0, "S3 never failed, so this says nothing about kills while it does"
    assert json.loads(objects["provenance.json"]) == manifest
    assert (manifest["status"], len(manifest["artifacts"])) == ("completed", 5)
    assert objects["response.json"] == world.server.ledger[manifest["request_id"]].response
    assert len(objects) == 8
    assert world.server.batches == [manifest["request_id"]]
    assert set(world.server.generated.values()) == {1}
    assert len(world.server.generated) == 3
    left = [path for path in (world.tmp / "state").rglob("*") if path.is_file()]
    assert [path for path in left if "runs" in path.parts and not any(p.startswith(".new") for p in path.parts)] == []


@pytest.mark.parametrize("world", range(5), indirect=True)
def test_killed_anywhere_resumed_to_one_publication(world: World) -> None:
    kill_and_resume(world, kills=4)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("world", range(100, 140), indirect=True)
def test_killed_anywhere_long_lane(world: World) -> None:
    kill_and_resume(world, kills=5)
