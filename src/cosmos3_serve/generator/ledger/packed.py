"""Packed: how objects lie in the ledger's columns. What is read is checked; what does not fit raises `DamagedRow`."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any


class DamagedRow(ValueError):
    """A stored row that this version can't have written."""


def text_of(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def merged(stored: Any, new: Mapping[str, Any]) -> bytes | None:
    return zlib.compress(text_of({**unpacked(stored), **new}).encode("ascii")) if new else stored


def unpacked(stored: Any) -> dict[str, Any]:
    if stored is None:
        return {}
    try:
        return object_of(zlib.decompress(stored))
    except (zlib.error, TypeError):
        raise DamagedRow("a stored detail is altered") from None


def object_of(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, TypeError):
        found = None
    if not isinstance(found, dict):
        raise DamagedRow("a stored object does not fit")
    return found


def number_of(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
