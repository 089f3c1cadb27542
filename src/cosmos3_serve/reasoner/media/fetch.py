"""Fetcher: what a URL points at, streamed into the store within budgets of bytes and time; or the reason why not."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import NoReturn

from cosmos3_serve.errors import LimitExceeded, NotFound, NotReady
from cosmos3_serve.media.refusal import Refused, bad, too_large
from cosmos3_serve.media.sniff import essence
from cosmos3_serve.reasoner.media.address import AllowList, Target, parse_target
from cosmos3_serve.reasoner.media.blobs import Blob
from cosmos3_serve.reasoner.media.flight import Flights
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.names import Names
from cosmos3_serve.reasoner.media.parts import UrlSource
from cosmos3_serve.reasoner.media.revisit import Visit, Visits
from cosmos3_serve.reasoner.media.store import MediaStore
from cosmos3_serve.reasoner.media.wire import Reply, Resolver, addresses_of, get
from cosmos3_serve.reasoner.shares import Shares
from cosmos3_serve.storage.location import open_object
from cosmos3_serve.storage.roots import AllowedRoots
from cosmos3_serve.storage.uri import parse_s3, require_object

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NO_MEDIA = ("text/", "application/json", "application/xml", "application/xhtml")


@dataclass(frozen=True, slots=True)
class Fetched:
    """A content in the store, and the type that its server declared (`""` for none)."""

    sha256: str
    mime: str


class Fetcher:
    """
    Args:
        allow: private hosts that the operator opened.
        roots: S3 locations that may be read.
        resolver: addresses of a name; default: the system's, shared fairly between tenants.
        tls: trust for https; default: the system's and certifi's authorities.
        environ: for S3's endpoint and credentials.
    """

    def __init__(
        self,
        store: MediaStore,
        limits: MediaLimits,
        *,
        allow: AllowList,
        roots: AllowedRoots,
        resolver: Resolver | None = None,
        tls: ssl.SSLContext | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._store, self._limits = store, limits
        self._allow, self._roots, self._environ = allow, roots, environ
        self._resolver, self._tls = resolver, tls
        self._names = Names()
        self._visits = Visits()
        self._flights: Flights[tuple[str, str], Fetched] = Flights()
        self._slots = Shares(limits.max_fetches, limits.max_waiting, _busy)

    async def fetch(self, source: UrlSource, tenant: str) -> tuple[Fetched, Blob]:
        """The content of a URL, in use. Asked again each time unless the server says that it has not changed; the same
        URL of the same tenant is asked once at a time.

        Raises:
            Refused: with host and path (never the query) and what the server said.
            InputError: an S3 location that may not be read, or is not there.
            NotReady: code `media_busy`: too many fetches wait; or the store is full.
            StorageFailure: object storage failed.
        """
        for _ in range(3):
            fetched = await self._flights.join((tenant, source.url), lambda: self._bounded(source, tenant))
            blob = await asyncio.to_thread(self._store.pin, fetched.sha256)
            if blob is not None:
                return fetched, blob
        raise NotReady("the media store forgets what was just fetched", code="media_store_full", retry_after_s=5)

    def close(self) -> None:
        self._names.close()

    async def _bounded(self, source: UrlSource, tenant: str) -> Fetched:
        try:
            async with asyncio.timeout(self._limits.fetch_timeout_s):
                if source.scheme == "s3":
                    async with self._slots.place(tenant):
                        return await self._object(source.url, tenant)
                return await self._http(source.url, tenant)
        except TimeoutError:
            what = "the object" if source.scheme == "s3" else parse_target(source.url, self._allow).shown
            limit_s = f"{self._limits.fetch_timeout_s:g} s"
            raise bad("media_fetch_timeout", f"{what} was not fetched within {limit_s}", "upload the file") from None

    async def _resolve(self, target: Target, tenant: str) -> list[str]:
        """Before a place is taken: names that nobody knows hold up no transfer."""
        resolver = self._resolver or (lambda host, port: self._names.resolve(host, port, tenant))
        return await addresses_of(target, resolver)

    # ---- http and https ---------------------------------------------------------------------------------------------

    async def _http(self, url: str, tenant: str) -> Fetched:
        target = parse_target(url, self._allow, max_chars=self._limits.max_url_chars)
        known = self._visits.get(tenant, url)
        if known is not None and not await self._held(known.sha256):
            known = None
        if self._tls is None:
            import httpx

            self._tls = await asyncio.to_thread(httpx.create_ssl_context)
        for _ in range(self._limits.max_redirects + 1):
            conditions = known.conditions() if known is not None and known.final == target.url else {}
            addresses = await self._resolve(target, tenant)
            async with (
                self._slots.place(tenant),
                get(
                    target, conditions, addresses, tls=self._tls, connect_timeout_s=self._limits.connect_timeout_s
                ) as reply,
            ):
                if reply.status in _REDIRECTS and "location" in reply.headers:
                    target = parse_target(
                        reply.headers["location"], self._allow, base=target, max_chars=self._limits.max_url_chars
                    )
                    continue
                if reply.status == 304 and conditions and known is not None:
                    return Fetched(known.sha256, known.mime)
                return await self._body(reply, target, url, tenant)
        raise bad("media_fetch_failed", f"{target.shown} redirects more than {self._limits.max_redirects} times")

    async def _body(self, reply: Reply, target: Target, url: str, tenant: str) -> Fetched:
        if reply.status != 200:
            raise bad(
                "media_upstream_error",
                f"{target.shown} answered {reply.status}",
                "the URL must answer 200 without a login" if reply.status in (401, 403) else "check the URL",
            )
        mime = essence(reply.headers.get("content-type", ""))
        if mime.startswith(_NO_MEDIA):
            raise bad("media_not_media", f"{target.shown} answered 200 with {mime[:60]}, not media", "check the URL")
        coding = reply.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            raise bad("media_upstream_error", f"{target.shown} answered with content-encoding {coding[:30]}")
        announced = reply.headers.get("content-length", "")
        if re.fullmatch(r"[0-9]{1,19}", announced) and int(announced) > self._limits.max_media_bytes:
            self._too_large(target.shown)
        try:
            blob = await self._store.put_stream(reply.chunks, self._limits.max_media_bytes)
        except Refused as refused:
            if refused.code == "media_empty":
                raise bad("media_empty", f"{target.shown} answered 200 with 0 bytes", "check the URL") from None
            if refused.code == "media_too_large":
                self._too_large(target.shown)
            raise
        with blob:
            self._visits.put(tenant, url, target.url, blob.sha256, reply.headers, mime)
            return Fetched(blob.sha256, mime)

    def _too_large(self, shown: str) -> NoReturn:
        raise too_large(
            "media_too_large", f"{shown} holds more than {self._limits.max_media_bytes} bytes", "cut or shrink it"
        ) from None

    async def _held(self, sha256: str) -> bool:
        blob = await asyncio.to_thread(self._store.pin, sha256)
        if blob is None:
            return False
        blob.close()
        return True

    # ---- s3 ---------------------------------------------------------------------------------------------------------

    async def _object(self, url: str, tenant: str) -> Fetched:
        uri = require_object(parse_s3(url))
        self._roots.authorize(uri)
        store, key = open_object(str(uri), self._environ)
        known: Visit | None = self._visits.get(tenant, url)
        found = await store.head(key)
        if found is None:
            raise bad("media_not_found", "there is no such object in the bucket", "check the key")
        if known is not None and found.etag and known.etag == found.etag and await self._held(known.sha256):
            return Fetched(known.sha256, "")
        if found.size == 0:
            raise bad("media_empty", "the object holds 0 bytes")
        try:
            async with aclosing(store.get_stream(key, max_bytes=self._limits.max_media_bytes)) as chunks:
                blob = await self._store.put_stream(_as_iterator(chunks), self._limits.max_media_bytes)
        except LimitExceeded:
            self._too_large("the object")
        except NotFound:
            raise bad("media_not_found", "there is no such object in the bucket", "check the key") from None
        with blob:
            self._visits.put(tenant, url, url, blob.sha256, {"etag": found.etag or ""}, "")
            return Fetched(blob.sha256, "")


async def _as_iterator(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        yield chunk


def _busy() -> NotReady:
    return NotReady("too many media URLs wait to be fetched", code="media_busy", retry_after_s=2)
