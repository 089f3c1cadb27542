"""One seed, one scenario of faults: what is submitted, to what kind of service and store, and what goes wrong when.

`str(scenario)` says all of it in one line; the same seed always gives the same line.
"""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from support.flaky import Fault
from support.local_faults import LocalFaults

STORE_FAULTS = (
    Fault.ERROR_500, Fault.ERROR_503, Fault.SLOW_DOWN, Fault.CONFLICT, Fault.PRECONDITION, Fault.REFUSE,
    Fault.LOST_REPLY, Fault.CUT, Fault.LAST_BYTE, Fault.ERROR_200, Fault.SLOW, Fault.DELAY,
)  # fmt: skip
SERVICE_FAULTS = (
    Fault.ERROR_500, Fault.ERROR_503, Fault.REFUSE, Fault.LOST_REPLY, Fault.CUT, Fault.LAST_BYTE, Fault.ERROR_200,
    Fault.SLOW, Fault.DELAY,
)  # fmt: skip
DAY = 86400.0
UNIQUE = re.compile(r"audit-\d+-[0-9a-f]{6}|[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Weather:
    """Seeded faults of one way: whether the n-th request for a path is hurt depends on seed, method, path and n alone;
    random parts of a path (names of probes) do not count. At most `at_most` times for one path."""

    seed: str
    rate: float
    kinds: tuple[Fault, ...]
    at_most: int = 2

    def draw(self, method: str, target: str, nth: int) -> Fault | None:
        path = UNIQUE.sub("*", target.partition("?")[0])
        before = sum(self._one(method, path, i) is not None for i in range(nth))
        return None if before >= self.at_most else self._one(method, path, nth)

    def _one(self, method: str, path: str, nth: int) -> Fault | None:
        digest = hashlib.sha256(f"{self.seed} {method} {path} {nth}".encode()).digest()
        if int.from_bytes(digest[:4]) >= self.rate * 2**32:
            return None
        return self.kinds[int.from_bytes(digest[4:8]) % len(self.kinds)]


@dataclass(frozen=True, slots=True)
class Run:
    """One client process.

    Attributes:
        die_at: killed at its n-th request (0: never), before it is passed on or after it was carried out.
        expired_at: from its n-th request to storage on, every one is answered with `expired` (0: never).
        service_dies_at: the service dies at the n-th request to it (0: never) and is away for some requests.
    """

    die_at: int = 0
    die_after: bool = False
    expired_at: int = 0
    expired: Fault = Fault.EXPIRED
    service_dies_at: int = 0
    local: LocalFaults = field(default_factory=LocalFaults)


@dataclass(frozen=True, slots=True)
class Rival:
    """A second client with a journal of its own, while the first is held at its n-th request.

    `same` resumes the same batch; `other` submits another batch to the same place.
    """

    at: int
    how: Literal["same", "other"]
    allow_partial: bool


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    service: Literal["ledger", "baseline"]
    store: Literal["s3", "folder"]
    samples: tuple[dict[str, Any], ...]
    padding: int
    failing: tuple[str, ...]
    interrupted: tuple[str, ...]
    allow_partial: bool
    storage: Weather
    network: Weather
    runs: tuple[Run, ...]
    rival: Rival | None
    altered: str = ""  # the store alters what is first stored under a name that ends so

    @property
    def request_id(self) -> str:
        return f"batch-{self.seed}"

    def __str__(self) -> str:
        parts = [f"seed {self.seed}: {self.service} service, {self.store}, {len(self.samples)} samples"]
        parts += [f"{self.padding} bytes more each"] if self.padding else []
        parts += [f"failing {self.failing}"] if self.failing else []
        parts += [f"interrupted {self.interrupted}"] if self.interrupted else []
        parts += ["--allow-partial"] if self.allow_partial else []
        parts += [f"faults {self.storage.rate:.2f} of storage, {self.network.rate:.2f} of the service"]
        parts += [f"runs {[_told(run) for run in self.runs]}"]
        parts += [f"{self.altered} altered by the store"] if self.altered else []
        parts += [f"rival {self.rival.how} at {self.rival.at}"] if self.rival else []
        return ", ".join(parts)


def _told(run: Run) -> str:
    words = [f"killed {'after' if run.die_after else 'before'} {run.die_at}"] if run.die_at else []
    words += [f"killed at change {run.local.die_at}"] if run.local.die_at else []
    words += [f"{run.expired.value} from {run.expired_at}"] if run.expired_at else []
    words += [f"service dies at {run.service_dies_at}"] if run.service_dies_at else []
    words += [f"disk full after {run.local.disk_bytes}"] if run.local.disk_bytes >= 0 else []
    words += [f"clock {run.local.clock_s:+.0f} s"] if run.local.clock_s else []
    return " ".join(words) or "undisturbed"


def sample(name: str, kind: str) -> dict[str, Any]:
    base = {"name": name, "prompt": f"of {name}"}
    if kind == "text":
        return base | {"model_mode": "reasoner"}
    frames = 1 if kind == "image" else 5
    return base | {"num_frames": frames, "resolution": "256", "seed": 3}


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = random.Random(f"scenario {seed}")
    names = [f"s{index}" for index in range(rng.choice([1, 2, 2, 3, 4, 6]))]
    samples = tuple(sample(name, rng.choice(["image", "image", "video", "text"])) for name in names)
    baseline = rng.random() < 0.15
    s3 = rng.random() < 0.7
    large = rng.random() < 0.08
    storm = rng.choice([0.0, 0.05, 0.15, 0.3])
    runs = tuple(_run(rng, s3=s3, baseline=baseline) for _ in range(rng.choice([1, 1, 2, 3])))
    altered = rng.choice(["vision.jpg", "reasoner_text.txt", "request.json", "response.json"])
    altered = altered if s3 and rng.random() < 0.08 else ""
    rival = None
    if not baseline and rng.random() < 0.35:
        rival = Rival(rng.randint(1, 34), rng.choice(["same", "other"]), rng.random() < 0.4)
    return Scenario(
        seed=seed,
        service="baseline" if baseline else "ledger",
        store="s3" if s3 else "folder",
        samples=samples,
        padding=9 * 2**20 if large else rng.choice([0, 0, 20_000, 300_000]),
        failing=tuple(n for n in names if rng.random() < 0.06),
        interrupted=tuple(n for n in names if rng.random() < 0.15) if not baseline else (),
        allow_partial=rng.random() < 0.3,
        storage=Weather(f"{seed} storage", storm if s3 else 0.0, STORE_FAULTS),
        network=Weather(f"{seed} service", rng.choice([0.0, 0.05, 0.15]), SERVICE_FAULTS),
        runs=runs,
        rival=rival,
        altered=altered,
    )


def _run(rng: random.Random, *, s3: bool, baseline: bool) -> Run:
    kind = rng.choice(["kill", "kill", "kill", "change", "change", "service", "disk", "clock", "expired", "none"])
    local, rest = LocalFaults(), dict[str, Any]()
    if kind == "kill":
        rest = {"die_at": rng.randint(1, 45), "die_after": rng.random() < 0.5}
    elif kind == "change":
        local = LocalFaults(die_at=rng.randint(1, 60))
    elif kind == "disk":
        local = LocalFaults(disk_bytes=rng.choice([0, 300, 3_000, 20_000, 200_000]))
    elif kind == "expired" and s3:
        rest = {"expired_at": rng.randint(1, 30), "expired": rng.choice([Fault.EXPIRED, Fault.SKEWED])}
    elif kind == "service" and not baseline:
        rest = {"service_dies_at": rng.randint(1, 14)}
    if kind == "clock" or rng.random() < 0.1:
        jump = rng.choice([-400 * DAY, -3600.0, 3600.0, 45 * DAY])
        local = LocalFaults(die_at=local.die_at, disk_bytes=local.disk_bytes, clock_s=jump)
    return Run(local=local, **rest)


def small(store: Literal["s3", "folder"], *, run: Run | None = None, **changes: Any) -> Scenario:
    """A picture and a text, and nothing that goes wrong but what is asked for: for sweeps over every step."""
    calm = Weather("", 0.0, ())
    made = Scenario(
        seed=0, service="ledger", store=store, samples=(sample("s", "image"), sample("x", "text")), padding=0,
        failing=(), interrupted=(), allow_partial=False, storage=calm, network=calm, runs=(run or Run(),), rival=None,
    )  # fmt: skip
    return replace(made, **changes)
