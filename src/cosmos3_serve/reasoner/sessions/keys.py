"""Session keys: which header, or which video, makes requests one session.

Rules for headers (docs/contract.md 9; a session must never be lost or shared by accident):

1. Names are tried in the configured order; the first with a value decides, later ones are not looked at.
2. Names compare without case, and `_` equals `-`: proxies rewrite one into the other.
3. An empty value (after trimming blanks) is no header.
4. A header given several times must say the same each time; two values are refused, since neither is the right one.
5. A value is an opaque string of 1 to 256 bytes. Longer ones and control characters are refused; bytes outside ASCII
   are kept as they are, no decoding is tried.

What leaves this module is an HMAC of tenant and value, so that tenants never share a session and no log, table or
metric ever sees what the client sent. It begins with a tag of the tenant, so that a table of sessions can be read
tenant by tenant without knowing any name.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from cosmos3_serve.errors import InvalidRequest, UsageError

DEFAULT_SESSION_HEADERS = ("X-Dynamo-Session-ID", "X-Session-ID")
MAX_SESSION_BYTES = 256
BODY_FIELD = "session_id"

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")


@dataclass(frozen=True, slots=True)
class SessionKey:
    """A session, safe to log: `digest` is 48 hex digits, `source` the header's name or `content`."""

    digest: str
    source: str


@dataclass(frozen=True, slots=True)
class MediaItem:
    """One media part of a request: `kind` is `video` or `image`, `sha256` that of its bytes, in hex."""

    kind: str
    sha256: str


class SessionKeys:
    """Makes session keys; every gateway needs the same `secret`.

    Args:
        secret: at least 16 bytes shared by the gateways of one service, unknown to clients.
        headers: header names in order of preference.

    Raises:
        UsageError: a short secret, or something that is no header name.
    """

    def __init__(self, secret: bytes, headers: Sequence[str] = DEFAULT_SESSION_HEADERS) -> None:
        if len(secret) < 16:
            raise UsageError("the secret of session keys needs at least 16 bytes")
        for name in headers:
            if not _HEADER_NAME.fullmatch(name):
                raise UsageError(f"session header {name!r} is no HTTP header name")
        self._headers = [(_folded(name.encode()), name) for name in headers]
        self._wanted = frozenset(folded for folded, _ in self._headers)
        self._of_tenant = lru_cache(maxsize=1024)(partial(_salt_and_owner, secret))

    def of_request(
        self, raw_headers: Iterable[tuple[bytes, bytes]], tenant: str, media: Sequence[MediaItem] = ()
    ) -> SessionKey | None:
        """The header's key, else the content's, else None (a request that belongs to no session).

        Args:
            raw_headers: as ASGI gives them.
            tenant: the name of the token, never the token.
            media: the media of the whole conversation in its order.

        Raises:
            InvalidRequest: 400, `invalid_session_key`, see rules 4 and 5.
        """
        return self.from_headers(raw_headers, tenant) or self.from_media(media, tenant)

    def from_headers(self, raw_headers: Iterable[tuple[bytes, bytes]], tenant: str) -> SessionKey | None:
        found: dict[bytes, set[bytes]] = {}
        for name, value in raw_headers:
            folded = _folded(name)
            if folded in self._wanted and (value := value.strip(b" \t")):
                found.setdefault(folded, set()).add(value)
        for folded, spelled in self._headers:
            if values := found.get(folded):
                return SessionKey(self._digest(tenant, b"header", _checked(spelled, values)), spelled)
        return None

    def named(self, value: bytes, tenant: str, source: str = BODY_FIELD) -> SessionKey | None:
        """The same session that a header with this value names. Raises as `of_request`."""
        value = value.strip(b" \t")
        return SessionKey(self._digest(tenant, b"header", _checked(source, {value})), source) if value else None

    def from_media(self, media: Sequence[MediaItem], tenant: str) -> SessionKey | None:
        """The first video's key, else the first image's: later turns of a conversation repeat it, and append."""
        first = next((m for m in media if m.kind == "video"), media[0] if media else None)
        if first is None:
            return None
        return SessionKey(self._digest(tenant, b"content", first.sha256.encode()), "content")

    def owner(self, tenant: str) -> str:
        """What every key of this tenant begins with: 16 hex digits."""
        return self._of_tenant(tenant)[1]

    def _digest(self, tenant: str, kind: bytes, value: bytes) -> str:
        salt, owner = self._of_tenant(tenant)
        return owner + hmac.digest(salt, kind + b"\0" + value, "sha256").hex()[:32]


def _salt_and_owner(secret: bytes, tenant: str) -> tuple[bytes, str]:
    salt = hmac.digest(secret, tenant.encode(), "sha256")
    return salt, hmac.digest(salt, b"owner", "sha256").hex()[:16]


def _folded(name: bytes) -> bytes:
    name = name.lower()
    return name.replace(b"_", b"-") if b"_" in name else name


def _checked(name: str, values: set[bytes]) -> bytes:
    if len(values) > 1:
        raise _refusal(f"{name} is given {len(values)} times with different values", "send one")
    (value,) = values
    if len(value) > MAX_SESSION_BYTES:
        raise _refusal(
            f"{name} has {len(value)} bytes, at most {MAX_SESSION_BYTES} are allowed",
            "send a shorter id, for instance a UUID",
        )
    if any(byte < 0x20 or byte == 0x7F for byte in value):
        raise _refusal(f"{name} holds a control character", "send printable characters")
    return value


def _refusal(detail: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(detail, remedy=remedy, code="invalid_session_key")
