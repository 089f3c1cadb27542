"""One real service for many tests: Ray, Serve, the tiny checkpoint (random weights), started once a session."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cosmos3_serve.generator.local import LocalGenerator


def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests that start services, so that the tiny checkpoint is built once."""
    given = os.environ.get("COSMOS3_TEST_CACHE")
    path = Path(given) if given else tmp_path_factory.getbasetemp() / "cosmos3-cache"
    path.mkdir(parents=True, exist_ok=True)
    return path


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


def service_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGenerator]:
    """For a session-scoped fixture: `yield from service_fixture(tmp_path_factory)`."""
    # On a busy machine the samples of one request reach the model replica more than the usual 50 ms apart.
    environ = {"COSMOS3_MAX_BODY_BYTES": "200000", "NPA_COSMOS3_RAY_BATCH_WAIT_TIMEOUT_S": "0.3"}
    with LocalGenerator(environ, shared_cache(tmp_path_factory)) as service:
        yield service
