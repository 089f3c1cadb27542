"""Which URL gave which content, per tenant, so that a server may say "not modified"."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Visit:
    """
    Args:
        final: URL that answered, after redirects; only it is asked conditionally.
        sha256: of what it gave.
        etag, modified: its validators, `""` where it sent none.
        mime: type that it declared.
    """

    final: str
    sha256: str
    etag: str
    modified: str
    mime: str

    def conditions(self) -> dict[str, str]:
        if self.etag:
            return {"If-None-Match": self.etag}
        return {"If-Modified-Since": self.modified} if self.modified else {}


class Visits:
    """The least recently used go first."""

    def __init__(self, max_visits: int = 4096) -> None:
        self._max = max_visits
        self._visits: OrderedDict[tuple[str, str], Visit] = OrderedDict()

    def get(self, tenant: str, url: str) -> Visit | None:
        visit = self._visits.get((tenant, url))
        if visit is not None:
            self._visits.move_to_end((tenant, url))
        return visit

    def put(self, tenant: str, url: str, final: str, sha256: str, headers: Mapping[str, str], mime: str) -> None:
        """Remember a visit; one without validators is forgotten instead, since it must be made again anyway."""
        etag, modified = headers.get("etag", "")[:1024], headers.get("last-modified", "")[:64]
        self._visits.pop((tenant, url), None)
        if not (etag or modified) or "no-store" in headers.get("cache-control", "").lower():
            return
        self._visits[tenant, url] = Visit(final, sha256, etag, modified, mime)
        while len(self._visits) > self._max:
            self._visits.popitem(last=False)
