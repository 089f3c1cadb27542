from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.s3 import LocalS3

from cosmos3_serve.retry import RetryPolicy
from cosmos3_serve.storage.bucket import BucketStore
from cosmos3_serve.storage.credentials import S3Access
from cosmos3_serve.storage.directory import DirectoryStore
from cosmos3_serve.storage.pace import TimeLimits
from cosmos3_serve.storage.store import ObjectStore

QUICK = RetryPolicy(attempts=5, base_s=0.002, cap_s=0.02, deadline_s=20)
QUICK_LIMITS = TimeLimits(connect_s=5, answer_s=1)
_numbers = itertools.count()


@dataclass(frozen=True)
class Bucket:
    """A fresh bucket on the running server."""

    s3: LocalS3
    name: str

    @property
    def environ(self) -> dict[str, str]:
        return self.s3.environ

    def store(
        self, *, endpoint: str | None = None, policy: RetryPolicy = QUICK, limits: TimeLimits = QUICK_LIMITS
    ) -> BucketStore:
        environ = {**self.environ, "AWS_ENDPOINT_URL": endpoint or self.s3.endpoint}
        return BucketStore(self.name, S3Access.from_environ(environ), policy, limits)


@pytest.fixture(scope="session")
def s3(s3_server: LocalS3) -> LocalS3:
    return s3_server


@pytest.fixture
def bucket(s3: LocalS3) -> Bucket:
    name = f"test-{next(_numbers)}"
    s3.create_bucket(name)
    return Bucket(s3, name)


@pytest.fixture(params=["s3", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """The same promises, kept by both kinds of store."""
    if request.param == "directory":
        return DirectoryStore(tmp_path / "root")
    made: Bucket = request.getfixturevalue("bucket")
    return made.store()
