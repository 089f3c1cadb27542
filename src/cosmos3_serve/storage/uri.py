"""S3 URIs: one text, one bucket, one key, or a refusal (docs/contract.md 5 and 6).

The parser is our own because `urllib.parse.urlsplit` silently drops tabs and line ends, which would turn one key into
another. Every key that passes `require_object` is stored and fetched under exactly its own name (proved against a
server, see the tests).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NoReturn
from urllib.parse import unquote_to_bytes

from cosmos3_serve.errors import StorageAuthorizationError

SCHEME = "s3://"
MAX_KEY_BYTES = 1024  # S3's own limit
NOT_ONE_OBJECT = "sample inputs must identify a single S3 object"
NOT_EXACT = "conditioning S3 key cannot be downloaded exactly"

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{0,254}\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_STAGED_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,16}\Z")
_CANONICAL = "s3://bucket/key with a plain bucket name and no user, port, query, fragment, backslash or empty part"


@dataclass(frozen=True, slots=True)
class S3Uri:
    """A bucket and a decoded key (`""` for the bucket itself, never a leading or trailing slash).

    `directory` remembers that the text ended in a slash; it does not take part in equality.
    """

    bucket: str
    key: str = ""
    directory: bool = field(default=False, compare=False)

    @property
    def suffix(self) -> str:
        """The extension of the decoded key with its dot, lower-cased; `""` where there is none."""
        return PurePosixPath(self.key).suffix.lower()

    @property
    def staged_suffix(self) -> str:
        """The extension a staged copy gets: a dot and 1..16 ASCII letters or digits, else `.bin`."""
        suffix = PurePosixPath(self.key).suffix
        return suffix if _STAGED_SUFFIX.match(suffix) else ".bin"

    def __str__(self) -> str:
        """Text that parses back to this very URI; only characters that would not survive are percent-encoded."""
        key = "".join(_escape(c) if c in "%?#\\" or _CONTROL.match(c) else c for c in self.key)
        body = key.rstrip()
        key = body + "".join(_escape(c) for c in key[len(body) :])
        return f"{SCHEME}{self.bucket}/{key}{'/' if self.directory else ''}"


def parse_s3(text: object) -> S3Uri:
    """Parse `s3://bucket[/key]`; the key is percent-decoded once.

    Leading slashes of the key and one trailing slash are dropped; the bucket is lower-cased (docs/contract.md 5).

    Raises:
        StorageAuthorizationError: not such a text. The detail says why and repeats no part of it.
    """
    if not isinstance(text, str):
        _malformed("not a string")
    text = text.strip()
    if text[: len(SCHEME)].lower() != SCHEME:
        _malformed("it does not start with s3://")
    if _CONTROL.search(text):
        _malformed("it holds a control character")
    for sign, name in (("?", "query"), ("#", "fragment")):
        if sign in text:
            _malformed(f"it has a {name}", remedy=f"write a {sign!r} of the key as {_escape(sign)}")
    host, _, path = text[len(SCHEME) :].partition("/")
    if not host:
        _malformed("it names no bucket")
    if "@" in host:
        _malformed("it has a user")
    if ":" in host or "[" in host:
        _malformed("it has a port")
    bucket = host.lower()
    if not _BUCKET.match(bucket):
        _malformed("the bucket name is not canonical")
    try:
        key = unquote_to_bytes(path.encode("utf-8")).decode("utf-8")
    except UnicodeError:
        _malformed("the key is not UTF-8")
    key = key.lstrip("/")
    directory = key.endswith("/")
    key = key.removesuffix("/")
    if key:
        problem = _key_problem(key)
        if problem:
            _malformed(problem)
    return S3Uri(bucket, key, directory)


def require_object(uri: S3Uri | str) -> S3Uri:
    """Insist that a URI names one object that can be fetched under exactly this name.

    Returns the parsed URI.

    Raises:
        StorageAuthorizationError: no key, a trailing slash, or a key with a character that does not survive:
            `?`, `#`, a control character, a blank at its end, or a literal `%` that reads as an escape.
    """
    uri = parse_s3(uri) if isinstance(uri, str) else uri
    if not uri.key or uri.directory:
        raise StorageAuthorizationError(NOT_ONE_OBJECT, remedy="name one object, without a trailing slash")
    try:
        again: S3Uri | None = parse_s3(f"{SCHEME}{uri.bucket}/{uri.key}")
    except StorageAuthorizationError:
        again = None
    if again != uri:
        raise StorageAuthorizationError(
            NOT_EXACT,
            remedy="copy the object to a key without ?, #, control characters, blanks at its end or percent escapes",
        )
    return uri


def check_key(key: str) -> str:
    """Refuse a key that the store would keep under another name, or could not keep. Returns the key.

    Raises:
        StorageAuthorizationError: code `invalid_key`; the detail says why.
    """
    problem = _key_problem(key) if key else "the key is empty"
    if not problem and (key.startswith("/") or key.endswith("/")):
        problem = "the key starts or ends with a slash"
    if not problem and _CONTROL.search(key):
        problem = "the key holds a control character"
    if problem:
        raise StorageAuthorizationError(f"the object key cannot be used: {problem}", code="invalid_key")
    return key


def _key_problem(key: str) -> str:
    if "\\" in key:
        return "the key holds a backslash"
    if any(part in ("", ".", "..") for part in key.split("/")):
        return "the key has an empty, '.' or '..' part"
    try:
        size = len(key.encode("utf-8"))
    except UnicodeError:
        return "the key is not UTF-8"
    return f"the key is longer than {MAX_KEY_BYTES} bytes" if size > MAX_KEY_BYTES else ""


def _escape(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8"))


def _malformed(reason: str, *, remedy: str = f"write {_CANONICAL}") -> NoReturn:
    raise StorageAuthorizationError(f"malformed S3 URI: {reason}", remedy=remedy, code="malformed_s3_uri")
