"""A real S3 API server for tests, and a second opinion on what it holds.

from support.s3 import LocalS3, boto, keys_of

@pytest.fixture(scope="session")
def s3():
    with LocalS3() as server:
        yield server
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from cosmos3_serve.trial.local_s3 import LocalS3

__all__ = ["LocalS3", "boto", "keys_of"]


def boto(environ: Mapping[str, str]) -> Any:
    """Another vendor's client for the same server, so that our client is never judged by itself."""
    return _boto(tuple(sorted(environ.items())))


@functools.lru_cache(maxsize=4)
def _boto(items: tuple[tuple[str, str], ...]) -> Any:
    import boto3
    from botocore.config import Config

    environ = dict(items)
    return boto3.client(
        "s3",
        endpoint_url=environ["AWS_ENDPOINT_URL"],
        aws_access_key_id=environ["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environ["AWS_SECRET_ACCESS_KEY"],
        region_name=environ["AWS_REGION"],
        config=Config(s3={"addressing_style": "path"}, proxies={}),
    )


def keys_of(environ: Mapping[str, str], bucket: str, prefix: str = "") -> list[str]:
    """The literal names of the stored objects, in order (at most 1,000)."""
    found = boto(environ).list_objects_v2(Bucket=bucket, Prefix=prefix)
    return [item["Key"] for item in found.get("Contents", [])]
