"""The obstore client of one bucket: endpoint, credentials, timeouts and its own retries."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from obstore.store import S3Store

from cosmos3_serve.storage.credentials import S3Access
from cosmos3_serve.storage.retry import RetryPolicy


def s3_client(bucket: str, access: S3Access, policy: RetryPolicy, *, retries: int) -> S3Store:
    options: dict[str, Any] = {
        "allow_http": access.allow_http,
        "connect_timeout": timedelta(seconds=policy.connect_timeout_s),
        "read_timeout": timedelta(seconds=policy.read_timeout_s),
        "timeout": timedelta(days=1),  # the library's 30 s would cut a long body; silence is what read_timeout ends
    }
    return S3Store(
        bucket,
        endpoint=access.endpoint,
        aws_endpoint_url_s3=access.endpoint,  # else a variable of that name would win over ours
        region=access.region,
        virtual_hosted_style_request=False,
        skip_signature=False,
        disable_bulk_delete=True,
        **access.credentials(),
        client_options=options,  # type: ignore[arg-type]
        retry_config={
            "max_retries": retries,
            "retry_timeout": timedelta(seconds=policy.deadline_s),
            "backoff": {
                "init_backoff": timedelta(seconds=policy.base_s),
                "max_backoff": timedelta(seconds=policy.cap_s),
                "base": 2,
            },
        },
    )
