"""What `GET /system-info` says of the machine and the software."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from cosmos3_serve.contract.targets import judge_targets
from cosmos3_serve.generator.engines.job import EngineInfo

NVIDIA_SMI_TIMEOUT_S = 10.0
TTL_S = 30.0


class SystemInfo:
    """Asks the machine at most every 30 seconds, in threads.

    Args:
        fixed: what never changes while the service runs.
        engine: what the engine said of itself, None until it answered.
        resources: Ray's view of the cluster, blocking.
        engine_name: the engine that the target is judged for.
        on_cpu: the engine was told to leave the devices alone.
        forced: `--force-unsupported-gpu` was given.
    """

    def __init__(
        self,
        fixed: Mapping[str, Any],
        engine: Callable[[], EngineInfo | None],
        resources: Callable[[], Mapping[str, float]],
        *,
        engine_name: str = "diffusers",
        on_cpu: bool = False,
        forced: bool = False,
    ) -> None:
        self._fixed = fixed
        self._judge = (engine_name, on_cpu, forced)
        self._engine = engine
        self._resources = resources
        self._lock = asyncio.Lock()
        self._known: tuple[float, dict[str, Any]] | None = None

    async def __call__(self) -> Mapping[str, Any]:
        async with self._lock:
            if self._known is None or time.monotonic() - self._known[0] > TTL_S:
                self._known = (time.monotonic(), await self._ask())
        engine = self._engine()
        known = self._known[1]
        target = self._target([a["compute_capability"] for a in known["accelerators"]], engine)
        return {**self._fixed, **known, "target": target, "engine": engine.model_dump(mode="json") if engine else None}

    def _target(self, machine: list[str], engine: EngineInfo | None) -> dict[str, Any]:
        """By the devices that the engine uses, once it has said so; until then by those of this machine."""
        name, on_cpu, forced = self._judge
        told = engine.capabilities if engine else None
        used = list(told) if told is not None else [] if on_cpu else machine
        return judge_targets(name, used, forced=forced).as_dict()

    async def _ask(self) -> dict[str, Any]:
        found, resources = await asyncio.gather(asyncio.to_thread(accelerators), _in_thread(self._resources))
        return {
            "accelerators": [{k: a[k] for k in ("name", "compute_capability")} for a in found],
            "ray_cluster_resources": resources,
            "driver": found[0]["driver"] if found else None,
            "versions": {name: _version(name) for name in ("ray", "torch", "diffusers", "transformers")},
        }


def accelerators() -> list[dict[str, str]]:
    """Name, compute capability and driver of each NVIDIA device; empty where nvidia-smi is absent or fails."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.rsplit(",", 2)] for line in done.stdout.splitlines() if line.strip()]
    return [{"name": r[0], "compute_capability": r[1], "driver": r[2]} for r in rows if len(r) == 3]


async def _in_thread(ask: Callable[[], Mapping[str, float]]) -> dict[str, float]:
    try:
        async with asyncio.timeout(5):
            return {str(k): float(v) for k, v in (await asyncio.to_thread(ask)).items()}
    except Exception:
        return {}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
