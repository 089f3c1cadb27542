"""Local stand-ins for what the checks ask: a stub Hub, a stub registry, a bucket of the S3 server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from support.guardrail_hub import engine_repos, guardrail_repos
from support.hub import StubHub, stub_hub
from support.registry import StubRegistry, stub_registry
from support.s3 import LocalS3

_numbers = itertools.count()


@pytest.fixture
def bucket(s3_server: LocalS3) -> str:
    name = f"preflight-{next(_numbers)}"
    s3_server.create_bucket(name)
    return name


@pytest.fixture
def hub() -> Iterator[StubHub]:
    with stub_hub({**guardrail_repos(), **engine_repos()}) as stub:
        yield stub


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    with stub_registry() as stub:
        yield stub
