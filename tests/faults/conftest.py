"""One scripted service for the room; each test leaves it working."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faults import Faulty
from support.service import shared_cache

ROOM = 64 * 1024 * 1024


@pytest.fixture(scope="session")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """A filesystem of its own that a test can fill; None where this user may not mount one."""
    place = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "none", str(place)], capture_output=True)
    if mounted.returncode:
        yield None
        return
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory, small_disk: Path | None) -> Iterator[Faulty]:
    base = small_disk or tmp_path_factory.mktemp("faults")
    environ = {
        "NPA_COSMOS3_RAY_OUTPUT_DIR": str(base / "outputs"),
        "NPA_COSMOS3_RAY_BATCH_WAIT_TIMEOUT_S": "0.3",
        "COSMOS3_DRAIN_TIMEOUT_S": "100",
    }
    with Faulty(environ, shared_cache(tmp_path_factory)) as service:
        yield service
