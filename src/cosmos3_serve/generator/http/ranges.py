"""Conditional and range requests for one immutable file, as RFC 9110 (sections 13 and 14) has them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime

from cosmos3_serve.errors import RangeNotSatisfiable

_RANGE = re.compile(r"bytes\s*=\s*(\d*)\s*-\s*(\d*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Validators:
    """What tells one state of a file from another. `etag` is strong: it is the content's SHA-256."""

    etag: str
    modified: float

    @classmethod
    def of(cls, sha256: str, modified: float) -> Validators:
        return cls(f'"{sha256}"', modified)

    @property
    def last_modified(self) -> str:
        return formatdate(self.modified, usegmt=True)


def not_modified(validators: Validators, if_none_match: str | None, if_modified_since: str | None) -> bool:
    """Whether 304 is the answer. `If-None-Match` wins and compares weakly; a date that cannot be read is ignored."""
    if if_none_match is not None:
        tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
        return "*" in tags or validators.etag in tags
    since = _seconds(if_modified_since)
    return since is not None and int(validators.modified) <= since


def wanted_range(header: str | None, if_range: str | None, size: int, validators: Validators) -> tuple[int, int] | None:
    """The bytes to send as (first, after last), or None for the whole file.

    None also where the header does not count: another unit, several ranges, not a range at all, or an `If-Range` that
    names another state of the file (compared strongly).

    Raises:
        RangeNotSatisfiable: a single range that lies beyond the file.
    """
    if header is None or (if_range is not None and not _same_state(if_range, validators)):
        return None
    match = _RANGE.fullmatch(header.strip())
    if match is None or not (match[1] or match[2]) or max(len(match[1]), len(match[2])) > 18:
        return None
    if not match[1]:
        length = int(match[2])
        first, last = max(0, size - length), size - 1
        if not length:
            raise _beyond(size)
    else:
        first = int(match[1])
        last = min(int(match[2]), size - 1) if match[2] else size - 1
        if match[2] and int(match[2]) < first:
            return None  # not a valid range: ignored, as section 14.1.1 says
    if first >= size:
        raise _beyond(size)
    return first, last + 1


def _beyond(size: int) -> RangeNotSatisfiable:
    return RangeNotSatisfiable(f"the file has {size} bytes", remedy="ask for a range that begins within it")


def _same_state(if_range: str, validators: Validators) -> bool:
    if_range = if_range.strip()
    if if_range.startswith(('"', "W/")):
        return if_range == validators.etag
    return if_range == validators.last_modified


def _seconds(date: str | None) -> int | None:
    if date is None:
        return None
    try:
        return int(parsedate_to_datetime(date).timestamp())
    except (ValueError, TypeError, OverflowError):
        return None
