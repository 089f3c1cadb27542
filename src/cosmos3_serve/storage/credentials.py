"""Where S3 is and who asks, as the AWS tools read it from the environment.

The first of these that is configured is used; all but the first are renewed by the S3 client before they expire:

    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY [, AWS_SESSION_TOKEN]
    AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN                        web identity (Kubernetes service accounts)
    AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI              ECS tasks, EKS pod identity
    AWS_PROFILE, or a shared credentials file                        through boto3, the extra `aws`
    AWS_EC2_METADATA_DISABLED=false                                  the machine's role

Instance metadata is not asked without that variable: on machines without it the question takes long to fail.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from cosmos3_serve.errors import UsageError

ENDPOINT_ENVS = ("AWS_ENDPOINT_URL", "NEBIUS_S3_ENDPOINT")
ACCESS_KEY_ENV = "AWS_ACCESS_KEY_ID"
SECRET_KEY_ENV = "AWS_SECRET_ACCESS_KEY"
SESSION_TOKEN_ENV = "AWS_SESSION_TOKEN"
REGION_ENVS = ("AWS_REGION", "AWS_DEFAULT_REGION")
AUTHORITY_ENVS = ("AWS_CA_BUNDLE", "SSL_CERT_FILE")
DEFAULT_REGION = "us-east-1"

# Option of the S3 client's own provider, and the variable that it is read from.
_WEB_IDENTITY = {
    "aws_web_identity_token_file": "AWS_WEB_IDENTITY_TOKEN_FILE",
    "aws_role_arn": "AWS_ROLE_ARN",
    "aws_role_session_name": "AWS_ROLE_SESSION_NAME",
    "aws_endpoint_url_sts": "AWS_ENDPOINT_URL_STS",
}
SESSION_NAME_ENV, DEFAULT_SESSION = "AWS_ROLE_SESSION_NAME", ("aws_role_session_name", "cosmos3-serve")
_CONTAINER = {
    "aws_container_credentials_relative_uri": "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "aws_container_credentials_full_uri": "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "aws_container_authorization_token_file": "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
}
_INSTANCE = {"aws_metadata_endpoint": "AWS_EC2_METADATA_SERVICE_ENDPOINT"}


@dataclass(frozen=True, slots=True)
class S3Access:
    """One endpoint and one identity; hashable, so that stores can be shared by it. Its repr holds no credential.

    Args:
        access_key_id, secret_access_key, session_token: fixed credentials; empty where `provider` or `profile` is set.
        provider: options of the S3 client's own renewing provider (empty with `instance` for the machine's role).
        profile: name of a profile of the shared files ("" for the default one).
        authorities: PEM files with certificates of authorities that are trusted besides the system's.
    """

    endpoint: str
    region: str
    access_key_id: str = field(default="", repr=False)
    secret_access_key: str = field(default="", repr=False)
    session_token: str | None = field(default=None, repr=False)
    provider: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    profile: str | None = None
    authorities: tuple[str, ...] = ()

    @property
    def allow_http(self) -> bool:
        """Plain HTTP only where the operator wrote an http endpoint, of S3 or of what gives the credentials."""
        return self.endpoint.startswith("http://") or any(value.startswith("http://") for _, value in self.provider)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> S3Access:
        """Raises UsageError: `s3_not_configured`, naming every missing variable; `invalid_s3_endpoint`."""
        environ = os.environ if environ is None else environ
        endpoint, key, secret = (
            _first(environ, *ENDPOINT_ENVS),
            _first(environ, ACCESS_KEY_ENV),
            _first(environ, SECRET_KEY_ENV),
        )
        provider = () if key or secret else _provider(environ)
        profile = None if key or secret or provider is not None else _profile(environ)
        wanted = [(" or ".join(ENDPOINT_ENVS), endpoint)]
        if (provider is None and profile is None) or key or secret:
            wanted += [(ACCESS_KEY_ENV, key), (SECRET_KEY_ENV, secret)]
        if missing := [name for name, value in wanted if not value]:
            raise UsageError(
                f"S3 is not configured: {', '.join(missing)} not set",
                remedy=f"set {' and '.join(missing)}; in place of keys AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE, "
                "or another source of docs/operations.md",
                code="s3_not_configured",
            )
        return cls(
            _endpoint(endpoint),
            _first(environ, *REGION_ENVS) or DEFAULT_REGION,
            key,
            secret,
            _first(environ, SESSION_TOKEN_ENV) or None if key else None,
            provider or (),
            profile,
            tuple(dict.fromkeys(filter(None, (_first(environ, name) for name in AUTHORITY_ENVS)))),
        )


def _first(environ: Mapping[str, str], *names: str) -> str:
    return next((environ[name].strip() for name in names if environ.get(name, "").strip()), "")


def _provider(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...] | None:
    """Options of the client's own provider; None where no source of it is configured."""

    def options(names: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        return tuple((option, value) for option, name in names.items() if (value := _first(environ, name)))

    if _first(environ, "AWS_WEB_IDENTITY_TOKEN_FILE") and _first(environ, "AWS_ROLE_ARN"):
        named = options(_WEB_IDENTITY)
        return named if _first(environ, SESSION_NAME_ENV) else (*named, DEFAULT_SESSION)
    if _first(environ, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        return options(_CONTAINER)
    if _first(environ, "AWS_EC2_METADATA_DISABLED").lower() == "false" and _profile(environ) is None:
        return options(_INSTANCE)
    return None


def _profile(environ: Mapping[str, str]) -> str | None:
    """The profile to use; None where neither one is named nor a shared credentials file is there. Blocking, briefly."""
    if name := _first(environ, "AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        return name
    home = _first(environ, "HOME")
    shared = _first(environ, "AWS_SHARED_CREDENTIALS_FILE") or (f"{home}/.aws/credentials" if home else "")
    return "" if shared and Path(shared).is_file() else None


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
