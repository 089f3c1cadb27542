"""Read what the user names: the batch (a file or an S3 object), the endpoint, the token, the output path.

Everything here is checked before anything is sent (docs/contract.md 3).
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from urllib.parse import urlsplit

from cosmos3_serve.client.http import MIB
from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.contract.jsontext import decode_json
from cosmos3_serve.contract.prepare import prepare_request
from cosmos3_serve.errors import InputError, LimitExceeded, UsageError, ValidationFailed
from cosmos3_serve.storage.files import in_thread
from cosmos3_serve.storage.location import open_object, open_store
from cosmos3_serve.storage.uri import SCHEME, require_object

MAX_INPUT_BYTES = 64 * MIB
ENDPOINT_ENV = "NPA_COSMOS3_RAY_ENDPOINT"


async def read_batch(input_path: str, environ: Mapping[str, str] | None = None) -> BatchRequest:
    """The prepared request of an input file.

    Raises:
        UsageError: blank, no such file, or S3 is not configured.
        LimitExceeded: larger than 64 MiB.
        ValidationFailed, InvalidRequestId: as `contract.prepare`; the detail begins `invalid Cosmos3 Ray batch`.
        NotFound, StorageFailure, StorageAuthorizationError: S3 would not give it.
    """
    data = await _read(input_path.strip(), environ)
    try:
        obj = await in_thread(decode_json, data)
    except InputError as error:
        raise ValidationFailed(
            f"invalid Cosmos3 Ray batch: {error.detail}",
            remedy="write one JSON object or list, UTF-8",
            code="invalid_json",
        ) from None
    return await in_thread(prepare_request, obj, check_uri=require_object)


async def _read(input_path: str, environ: Mapping[str, str] | None) -> bytes:
    if not input_path:
        raise UsageError("no input: the input path is empty", remedy="give --input-path a file or s3://bucket/key")
    if input_path.lower().startswith(SCHEME):
        store, key = open_object(input_path, environ)
        async with aclosing(store.get_stream(key, max_bytes=MAX_INPUT_BYTES)) as chunks:
            return b"".join([chunk async for chunk in chunks])
    path = Path(input_path)
    if not await in_thread(path.is_file):
        raise UsageError(f"no input: {input_path} is not an existing file", remedy="give --input-path a JSON file")
    try:
        size = path.stat().st_size
        if size > MAX_INPUT_BYTES:
            raise LimitExceeded(f"the input has {size} bytes, the limit is {MAX_INPUT_BYTES}", remedy="split the batch")
        return await in_thread(path.read_bytes)
    except OSError as error:
        raise UsageError(f"the input cannot be read: {error.strerror}", remedy="check the file's permissions") from None


def endpoint_of(
    flag: str, environ: Mapping[str, str] | None = None, *, env: str = ENDPOINT_ENV, default: str = ""
) -> str:
    """The service's address from the flag, else the variable `env`, else `default`; without trailing slashes.

    Raises:
        UsageError: none given, or not http(s)://host[:port][/path].
    """
    environ = os.environ if environ is None else environ
    text = (flag.strip() or environ.get(env, "").strip() or default).rstrip("/")
    remedy = f"give --endpoint http://host:port, or set {env}"
    if not text:
        raise UsageError("no endpoint", remedy=remedy, code="no_endpoint")
    try:
        parts = urlsplit(text)
        plain = not (parts.username or parts.password or parts.query or parts.fragment)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and plain
    except ValueError:
        valid = False
    if not valid or not text.isprintable() or " " in text:
        raise UsageError(
            "the endpoint is not an http(s) URL without user, query and fragment",
            remedy=remedy,
            code="invalid_endpoint",
        )
    return text


def plain_http_warning(endpoint: str) -> str | None:
    """What to say when the token leaves this machine unencrypted; not refused, as in-cluster services speak http."""
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost" or host.endswith(".localhost")
    if parts.scheme == "https" or loopback:
        return None
    return f"warning: {host} is addressed by plain http; the token travels unencrypted (fine inside a cluster network)"


def token_of(name: str, environ: Mapping[str, str] | None = None) -> str:
    """The bearer token from the variable `name`.

    Raises:
        UsageError: code `no_token`: unset or blank; or it could not travel in a header.
    """
    environ = os.environ if environ is None else environ
    token = environ.get(name, "").strip()
    if not token:
        raise UsageError(
            f"the token is missing: the environment variable {name} is not set",
            remedy=f"set {name}, or name another variable with --token-env",
            code="no_token",
        )
    if not (token.isascii() and token.isprintable()):
        raise UsageError(f"the token in {name} is not printable ASCII", remedy="check its value", code="no_token")
    return token


def check_output(output_path: str, environ: Mapping[str, str] | None = None, *, connect: bool = True) -> str:
    """The output path, stripped.

    Raises:
        UsageError: it begins with neither s3:// nor /, or (with `connect`) S3 is not configured.
        StorageAuthorizationError: a malformed S3 URI.
    """
    text = output_path.strip()
    if not text.startswith((SCHEME, "/")):
        raise UsageError(
            "the output path begins with neither s3:// nor /", remedy="give --output-path s3://bucket/prefix/"
        )
    if connect:
        open_store(text, environ)
    return text
