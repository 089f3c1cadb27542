"""Where S3 is and who asks: read from the environment, never from the machine's metadata service or profile files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from cosmos3_serve.errors import UsageError

ENDPOINT_ENVS = ("AWS_ENDPOINT_URL", "NEBIUS_S3_ENDPOINT")
ACCESS_KEY_ENV = "AWS_ACCESS_KEY_ID"
SECRET_KEY_ENV = "AWS_SECRET_ACCESS_KEY"
SESSION_TOKEN_ENV = "AWS_SESSION_TOKEN"
# Written into a pod's environment for a ServiceAccount that has a role.
ROLE_ENV, TOKEN_FILE_ENV = "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"
ROLE_SESSION_ENV, STS_ENDPOINT_ENV = "AWS_ROLE_SESSION_NAME", "AWS_ENDPOINT_URL_STS"
ROLE_SESSION = "cosmos3-serve"
REGION_ENVS = ("AWS_REGION", "AWS_DEFAULT_REGION")
DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class WebIdentity:
    """A role, and the file whose token gets keys for it; both are read again before the keys expire."""

    role: str
    token_file: str
    session: str
    sts_endpoint: str | None = None

    def config(self) -> dict[str, Any]:
        """In obstore's names."""
        found = {
            "aws_role_arn": self.role,
            "aws_web_identity_token_file": self.token_file,
            "aws_role_session_name": self.session,
        }
        return found | ({"aws_endpoint_url_sts": self.sts_endpoint} if self.sts_endpoint else {})


@dataclass(frozen=True, slots=True)
class S3Access:
    """One endpoint and one identity; hashable, so that stores can be shared by it. Its repr holds no credential."""

    endpoint: str
    region: str
    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    identity: WebIdentity | None = None

    def credentials(self) -> dict[str, Any]:
        """The arguments of obstore's S3Store that say who asks."""
        if self.identity is not None:
            return self.identity.config()
        key = {
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
            "token": self.session_token,
            "expires_at": None,
        }
        return {"credential_provider": lambda: key}

    @property
    def allow_http(self) -> bool:
        """Plain HTTP only where the operator wrote an http endpoint."""
        return self.endpoint.startswith("http://")

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> S3Access:
        """Keys where they are set, else a web identity (a role and a token's file), as AWS' own clients decide.

        Raises:
            UsageError: code `s3_not_configured`, naming every missing variable; or `invalid_s3_endpoint`.
        """
        environ = os.environ if environ is None else environ

        def first(*names: str) -> str:
            return next((environ[name].strip() for name in names if environ.get(name, "").strip()), "")

        endpoint, key, secret = first(*ENDPOINT_ENVS), first(ACCESS_KEY_ENV), first(SECRET_KEY_ENV)
        region = first(*REGION_ENVS) or DEFAULT_REGION
        role, token_file = first(ROLE_ENV), first(TOKEN_FILE_ENV)
        if endpoint and role and token_file and not (key or secret):
            sts = first(STS_ENDPOINT_ENV) or None
            identity = WebIdentity(role, token_file, first(ROLE_SESSION_ENV) or ROLE_SESSION, sts and _endpoint(sts))
            return cls(_endpoint(endpoint), region, "", "", None, identity)
        missing = [
            name
            for name, value in ((" or ".join(ENDPOINT_ENVS), endpoint), (ACCESS_KEY_ENV, key), (SECRET_KEY_ENV, secret))
            if not value
        ]
        if missing:
            raise UsageError(
                f"S3 is not configured: {', '.join(missing)} not set",
                remedy=f"set {' and '.join(missing)}; in place of keys, {ROLE_ENV} and {TOKEN_FILE_ENV}",
                code="s3_not_configured",
            )
        return cls(_endpoint(endpoint), region, key, secret, first(SESSION_TOKEN_ENV) or None)


def _endpoint(text: str) -> str:
    try:
        parts = urlsplit(text)
        valid = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and not (parts.username or parts.password or parts.query or parts.fragment)
            and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(
            f"the S3 endpoint in {' or '.join(ENDPOINT_ENVS)} is not an http(s) URL",
            remedy="write https://host[:port] without user, query or fragment",
            code="invalid_s3_endpoint",
        )
    return text.rstrip("/")
