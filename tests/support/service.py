"""What tests that talk to a generator service share."""

import contextlib
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.tiny import with_tiny

from cosmos3_serve.generator.local import LocalGenerator


def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests that start services, with the tiny checkpoint in it."""
    path = tmp_path_factory.getbasetemp() / "cosmos3-cache"
    return path if path.exists() else with_tiny(path)


def client(service: LocalGenerator, **options: Any) -> httpx.Client:
    return httpx.Client(base_url=service.url, headers=service.headers, **{"timeout": 60.0, **options})


def images(*names: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": n, "prompt": "a red ball", "num_frames": 1, "seed": 7} | fields for n in names]


class Figures:
    """The service's metrics at one moment; `since` is what was added after an earlier one."""

    def __init__(self, text: str) -> None:
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        self.values = {name.removeprefix("cosmos3_generator_"): float(value) for name, value in pairs}

    @classmethod
    def of(cls, http: httpx.Client) -> "Figures":
        return cls(http.get("/metrics").text)

    def since(self, earlier: "Figures", name: str) -> float:
        return self.values.get(name, 0.0) - earlier.values.get(name, 0.0)

    def sizes(self, earlier: "Figures", histogram: str) -> dict[float, int]:
        """Size bucket to how many were added, leaving out empty ones."""
        found: dict[float, int] = {}
        before = 0.0
        for name in self.values:
            match = re.fullmatch(rf'{histogram}_bucket\{{le="([0-9.]+)"\}}', name)
            if match:
                here = self.since(earlier, name)
                if here > before:
                    found[float(match[1])] = int(here - before)
                before = here
        return found


def readiness_until(own: LocalGenerator, url: str, status: int) -> list[tuple[int, set[str]]]:
    """Every answer of /ready from the first one on: its status and the checks that did not hold."""
    seen: list[tuple[int, set[str]]] = []
    deadline = time.monotonic() + 120
    with httpx.Client(base_url=url, headers=own.headers, timeout=20) as http:
        while not seen or seen[-1][0] != status:
            assert time.monotonic() < deadline and own.exit_code is None, own.log_tail()
            time.sleep(0.1)
            with contextlib.suppress(httpx.TransportError):
                answer = http.get("/ready")
                failing = {check["name"] for check in answer.json()["checks"] if not check["ok"]}
                seen.append((answer.status_code, failing))
    return seen
