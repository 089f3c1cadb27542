"""The obstore client of one bucket: endpoint, credentials, authorities, time limits and its own retries."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from obstore.store import S3Store

from cosmos3_serve.errors import UsageError
from cosmos3_serve.proxies import is_loopback
from cosmos3_serve.retry import RetryPolicy
from cosmos3_serve.storage.credentials import S3Access
from cosmos3_serve.storage.pace import TimeLimits

THIS_MACHINE = "localhost,127.0.0.0/8,::1"


class S3Clients:
    """Clients of one bucket, one for each time limit: few, because limits are rounded up to powers of two."""

    def __init__(self, bucket: str, access: S3Access, policy: RetryPolicy, limits: TimeLimits) -> None:
        self._bucket, self._access, self._policy, self._limits = bucket, access, policy, limits
        self._authorities = _authorities(access)
        self._provider = _provider(access)
        self._made: dict[tuple[float, bool], S3Store] = {}
        self.plain = self.of(limits.answer_s)

    def of(self, silence_s: float, *, retries: bool = False) -> S3Store:
        """The client that gives up after `silence_s` seconds (rounded up) without a byte of an answer; the sending of a
        body counts as silence.

        Args:
            retries: it repeats requests itself (the parts of a multipart upload, which only it knows).
        """
        doublings = max(0, math.ceil(math.log2(silence_s / self._limits.answer_s)))
        key = (self._limits.answer_s * 2.0**doublings, retries)
        if key not in self._made:
            self._made[key] = self._client(*key)
        return self._made[key]

    def _client(self, silence_s: float, retries: bool) -> S3Store:
        access, policy = self._access, self._policy
        options: dict[str, Any] = {
            "allow_http": access.allow_http,
            "connect_timeout": timedelta(seconds=self._limits.connect_s),
            "read_timeout": timedelta(seconds=silence_s),
            "timeout": timedelta(days=1),  # the library's 30 s would cut a long body; silence is what read_timeout ends
        }
        if self._authorities:
            options["root_certificate"] = self._authorities
        options |= _proxy(access.endpoint)
        return S3Store(
            self._bucket,
            endpoint=access.endpoint,
            aws_endpoint_url_s3=access.endpoint,  # else a variable of that name would win over ours
            region=access.region,
            virtual_hosted_style_request=False,
            skip_signature=False,
            disable_bulk_delete=True,
            client_options=options,  # type: ignore[arg-type]
            retry_config={
                "max_retries": policy.attempts - 1 if retries else 0,
                # A try that was silent for its whole time is the last: what follows is fewer parts at once.
                "retry_timeout": timedelta(seconds=silence_s),
                "backoff": {
                    "init_backoff": timedelta(seconds=policy.base_s),
                    "max_backoff": timedelta(seconds=policy.cap_s),
                    "base": 2,
                },
            },
            **self._provider,
        )


def _proxy(endpoint: str) -> dict[str, str]:
    """The environment's proxy with an exception for this machine, where the endpoint is there; else the client's own
    reading of the environment is right."""
    found = getproxies()
    proxy = found.get("https") or found.get("all") or found.get("http")
    if not proxy or not is_loopback(urlsplit(endpoint).hostname or ""):
        return {}
    excluded = filter(None, (found.get("no", ""), THIS_MACHINE, urlsplit(endpoint).hostname))
    return {"proxy_url": proxy, "proxy_excludes": ",".join(excluded)}


def _provider(access: S3Access) -> dict[str, Any]:
    """Arguments that say who asks."""
    if access.profile is not None:
        return {"credential_provider": _boto3(access.profile)}
    if not access.access_key_id:
        return dict(access.provider)
    credential = {
        "access_key_id": access.access_key_id,
        "secret_access_key": access.secret_access_key,
        "token": access.session_token,
        "expires_at": None,
    }
    return {"credential_provider": lambda: credential}


def _boto3(profile: str) -> Any:
    """obstore's own provider over boto3, which alone reads profiles (static keys, role chains, SSO, processes).

    Raises:
        UsageError: code `s3_profile_unusable`: boto3 is not installed, or the profile gives no credentials.
    """
    remedy = "install boto3 (the extra `aws`), or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    try:
        import boto3
        import botocore.exceptions
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise UsageError(
            "the S3 credentials are in an AWS profile, and boto3, which reads profiles, is not installed",
            remedy=remedy,
            code="s3_profile_unusable",
        ) from None
    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=profile or None))
    except (botocore.exceptions.BotoCoreError, ValueError) as error:
        raise UsageError(
            f"the AWS profile {profile or 'default'!r} gives no credentials ({type(error).__name__})",
            remedy="check AWS_PROFILE and the shared credentials file, or set the keys themselves",
            code="s3_profile_unusable",
        ) from None


def _authorities(access: S3Access) -> bytes:
    """All certificates of the files named, as PEM.

    Raises:
        UsageError: code `ca_bundle_unreadable`.
    """
    found = []
    for name in access.authorities:
        try:
            data = Path(name).read_bytes()
        except OSError as error:
            raise _unreadable(error.strerror or type(error).__name__) from None
        if b"-----BEGIN CERTIFICATE-----" not in data:
            raise _unreadable("it holds no PEM certificate")
        found.append(data)
    return b"\n".join(found)


def _unreadable(why: str) -> UsageError:
    return UsageError(
        f"the certificates named by AWS_CA_BUNDLE or SSL_CERT_FILE cannot be read: {why}",
        remedy="name a readable PEM file, or unset the variable",
        code="ca_bundle_unreadable",
    )
