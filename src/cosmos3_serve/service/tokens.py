"""TokenBook: which bearer tokens are valid now and which tenant each belongs to.

A token comes from an environment variable (tenant `default`), or from a file of `name:token` lines that is read again
when it changes, or from both. Several tokens may be valid at once, also several of one tenant, so that a token can be
replaced without a moment in which neither or only one side knows it. The book keeps digests, never the tokens.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.settings import TOKEN_ENV, TOKEN_FILE_ENV

log = structlog.get_logger(__name__)

DEFAULT_TENANT = "default"
MIN_TOKEN_CHARS = 8
MAX_FILE_BYTES = 1024 * 1024
RECHECK_S = 1.0

_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TOKEN = re.compile(r"[\x21-\x7e]+")

Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Entry:
    tenant: str
    digest: bytes


class TokenBook:
    """The valid tokens. Compares in constant time over all of them, on bytes.

    Args:
        env_token: token of the tenant `default`, or None.
        path: file with one `name:token` a line; blank lines and lines that begin with `#` are skipped.
        clock: seconds, monotonic.
        names: the variables that hold token and path, for messages.

    Raises:
        StartRefused: no token at all, or one that cannot be a token.
    """

    def __init__(
        self,
        env_token: str | None,
        path: Path | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        names: tuple[str, str] = (TOKEN_ENV, TOKEN_FILE_ENV),
    ) -> None:
        self._fixed = [_entry(DEFAULT_TENANT, env_token, names[0])] if env_token is not None else []
        self._path = path
        self._clock = clock
        self._lock = asyncio.Lock()
        self._checked_at = clock()
        self._stamp: Stamp | None = None
        self.problem = ""  # why the file could not be taken over; empty while all is well
        self._entries = self._fixed
        if path is not None:
            self._stamp, from_file = _read(path)
            self._entries = _merge(self._fixed, from_file)
        if not self._entries:
            raise StartRefused(
                "no bearer token is configured",
                code="token_missing",
                remedy=f"set {names[0]}, or {names[1]} to a file with one `name:token` a line",
            )

    @classmethod
    def from_environ(
        cls, environ: Mapping[str, str] | None = None, *, token_env: str = TOKEN_ENV, file_env: str = TOKEN_FILE_ENV
    ) -> TokenBook:
        """The book that the environment describes. Raises StartRefused as the constructor does."""
        environ = os.environ if environ is None else environ
        file = environ.get(file_env, "").strip()
        return cls(environ.get(token_env) or None, Path(file) if file else None, names=(token_env, file_env))

    def __len__(self) -> int:
        return len(self._entries)

    def tenant_of(self, presented: bytes) -> str | None:
        """Tenant of a presented token, or None. Takes as long for a wrong token as for a right one."""
        digest = hashlib.sha256(presented).digest()
        found: str | None = None
        for entry in self._entries:
            if hmac.compare_digest(entry.digest, digest):
                found = entry.tenant
        return found

    async def refresh(self) -> None:
        """Look at the file at most once a second, away from the event loop, and take over what changed.

        A file that is missing or malformed leaves the earlier tokens valid: a rewrite in progress must not lock
        everybody out. `problem` then says why, and readiness shows it.
        """
        if self._path is None or self._clock() - self._checked_at < RECHECK_S or self._lock.locked():
            return
        async with self._lock:
            self._checked_at = self._clock()
            await asyncio.to_thread(self._reload, self._path)

    def _reload(self, path: Path) -> None:
        try:
            if _stamp_of(path) == self._stamp and not self.problem:
                return
            stamp, from_file = _read(path)
            entries = _merge(self._fixed, from_file)
        except (OSError, StartRefused) as error:
            text = error.detail if isinstance(error, StartRefused) else f"cannot read it ({type(error).__name__})"
            if text != self.problem:
                log.error("token_file_rejected", reason=text)
            self.problem = text
            return
        self._stamp, self._entries, self.problem = stamp, entries, ""
        log.info("token_file_read", tokens=len(entries))


def _stamp_of(path: Path) -> Stamp:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(path: Path) -> tuple[Stamp, list[Entry]]:
    try:
        # The stamp is taken first: a write that comes in between changes it again and is read at the next look.
        stamp = _stamp_of(path)
        if stamp[1] > MAX_FILE_BYTES:
            raise _refused(f"the token file is larger than {MAX_FILE_BYTES} bytes")
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise _refused(f"the token file cannot be read ({type(error).__name__})") from None
    except UnicodeDecodeError:
        raise _refused("the token file is not UTF-8") from None
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, colon, token = line.partition(":")
        if not colon or not _TENANT.fullmatch(name.strip()):
            raise _refused(f"line {number} of the token file is not `name:token`")
        entries.append(_entry(name.strip(), token.strip(), f"line {number} of the token file"))
    if not entries:
        raise _refused("the token file holds no token")
    return stamp, entries


def _entry(tenant: str, token: str, where: str) -> Entry:
    if not _TOKEN.fullmatch(token):
        raise _refused(f"the token in {where} is empty or holds blanks, control or non-ASCII characters")
    if len(token) < MIN_TOKEN_CHARS:
        raise _refused(f"the token in {where} has fewer than {MIN_TOKEN_CHARS} characters")
    return Entry(tenant, hashlib.sha256(token.encode("ascii")).digest())


def _merge(fixed: Iterable[Entry], from_file: Iterable[Entry]) -> list[Entry]:
    merged: dict[bytes, Entry] = {}
    for entry in (*fixed, *from_file):
        known = merged.setdefault(entry.digest, entry)
        if known.tenant != entry.tenant:
            raise _refused("one token is given to two names; each tenant needs its own")
    return list(merged.values())


def _refused(detail: str) -> StartRefused:
    return StartRefused(
        detail, code="token_invalid", remedy="use `python -c 'import secrets; print(secrets.token_urlsafe(32))'`"
    )
