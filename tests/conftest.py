"""What holds for every test."""

import functools
import gc
import logging
import os
from collections.abc import Generator, Iterator
from typing import Any

import httpx._transports.default as httpx_transports
import pytest
from hypothesis import HealthCheck, settings
from kubernetes_validate import utils as kubernetes_schemas
from support import lanes
from support.s3 import LocalS3

# How long an example takes is the machine's affair: two lanes of tests and their services share two cores.
settings.register_profile("shared-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared-machine")

# Read once, when torch loads OpenMP. Threads that spin while they wait for each other take the cores that the others'
# tests need: on two busy cores a wave took ten times as long with two threads as with one.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# httpx reads all of the world's certificates for every client that it makes, though it only talks to loopback: 25 ms of
# CPU, a third of what the gateway's tests took. A TLS context may be shared.
httpx_transports.create_ssl_context = functools.cache(httpx_transports.create_ssl_context)

# And kubernetes-validate reads all of Kubernetes' definitions for every object that it checks, 10 ms, and changes none.
kubernetes_schemas.schema_contents = functools.cache(kubernetes_schemas.schema_contents)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: lanes.rank(item.nodeid))


BEGUN = pytest.StashKey[bool]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    if hasattr(item.config, "workerinput") and not item.config.stash.get(BEGUN, False):
        item.config.stash[BEGUN] = True
        lanes.give_way(item.nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return lanes.workers()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return lanes.scheduler(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and what they import stay until the end: garbage need not be looked for among them, neither
    while they are gathered nor whenever a test frees something (as a service does once it has started)."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # first: to enable is to look through everything at once
        gc.enable()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[LocalS3]:
    """A real S3 API for all rooms, each with buckets of its own: a start costs seconds of CPU."""
    with LocalS3() as server:
        yield server


@pytest.fixture(autouse=True)
def ordinary_logging() -> Iterator[None]:
    """A service that a test starts in this process sets up its logging; the next test's must be as before."""
    root, ours = logging.getLogger(), logging.getLogger("cosmos3_serve")
    handlers, level = list(root.handlers), ours.level
    yield
    ours.setLevel(level)
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        if type(handler).__module__.startswith("cosmos3_serve"):
            root.removeHandler(handler)


@pytest.fixture(autouse=True)
def ordinary_scheduling() -> Iterator[None]:
    """No library may turn the test process into a real-time one (SVT-AV1's encoder does, as root): what it starts
    would inherit that, and spinning threads of real-time priority never let the machine go on."""
    yield
    if hasattr(os, "sched_getscheduler"):
        assert os.sched_getscheduler(0) == os.SCHED_OTHER, "the main thread is no longer scheduled as others are"
