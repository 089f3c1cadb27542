"""JSON without surprises: UTF-8 only, no key twice, finite numbers only, bounded nesting, no lone surrogates.

Python's own reader accepts NaN, silently keeps the last of two equal keys, dies of deep nesting with a RecursionError
and lets through text that no later write can encode; each of these would surface far from the request that caused it.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from cosmos3_serve.contract.limits import MAX_INTEGER_BITS
from cosmos3_serve.errors import ValidationFailed

_LONG_DIGITS = 300  # fewer digits make fewer than MAX_INTEGER_BITS bits
_MANY_DIGITS = re.compile(rb"[0-9]{%d}" % _LONG_DIGITS)


class JsonProblem(ValueError):
    """A value that is not clean JSON; `path` leads to it."""

    def __init__(self, path: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large for a JSON number")
    return value


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:64]!a} stands twice in one object")
    return found


def decode_json(data: bytes) -> Any:
    """Parse one JSON text.

    Raises:
        ValidationFailed: (code `invalid_json`) not UTF-8, not JSON, a key twice in one object, NaN or Infinity, nested
            too deep, or a number too long to read. The detail says where.
    """
    remedy = "send one JSON object, UTF-8"
    try:
        return json.loads(
            data.decode("utf-8"), parse_float=_finite, parse_constant=_no_constant, object_pairs_hook=_once_each
        )
    except UnicodeDecodeError as error:
        raise ValidationFailed(f"body is not UTF-8 (byte {error.start})", code="invalid_json", remedy=remedy) from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ValidationFailed(
            f"body is not JSON: {error.msg} at {where}", code="invalid_json", remedy=remedy
        ) from None
    except RecursionError:
        raise ValidationFailed("body is nested too deep", code="invalid_json", remedy=remedy) from None
    except ValueError as error:
        raise ValidationFailed(f"body is not JSON: {str(error)[:200]}", code="invalid_json", remedy=remedy) from None


def canonical_json(value: Any) -> bytes:
    """Sorted, compact, ASCII-escaped: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def plainly_clean(data: bytes, *, max_depth: int) -> bool:
    """Whether `decode_json` of this text needs no `check_json` for depth, surrogates and numbers: too few brackets to
    nest so deep, no escape that could be half a character, no long run of digits. False says nothing.
    """
    return (
        data.count(b"{") + data.count(b"[") <= max_depth
        and b"\\u" not in data
        and (len(data) < _LONG_DIGITS or _MANY_DIGITS.search(data) is None)
    )


def check_json(value: Any, *, max_depth: int, max_nodes: int) -> None:
    """Walk a decoded JSON value without recursion.

    Raises:
        JsonProblem: not a JSON type, not finite, a lone surrogate, deeper than `max_depth` containers, or more than
            `max_nodes` values. Keys count as values.
    """
    pending: list[tuple[tuple[str | int, ...], Any, int]] = [((), value, 0)]
    nodes = 0
    while pending:
        path, item, depth = pending.pop()
        nodes += 1
        if nodes > max_nodes:
            raise JsonProblem(path[:1], f"holds more than {max_nodes} values")
        if isinstance(item, dict | list):
            if depth >= max_depth:
                raise JsonProblem(path[:1], f"is nested deeper than {max_depth} levels")
            if isinstance(item, list):
                pending.extend(((*path, index), child, depth + 1) for index, child in enumerate(item))
                continue
            for key, child in item.items():
                if not isinstance(key, str):
                    raise JsonProblem(path, "has a key that is not text")
                if not _encodable(key):
                    raise JsonProblem(path, "has a key with a lone surrogate")
                nodes += 1
                pending.append(((*path, key), child, depth + 1))
        elif isinstance(item, str):
            if not _encodable(item):
                raise JsonProblem(path, "holds a lone surrogate, which no UTF-8 text can")
        elif isinstance(item, float):
            if not math.isfinite(item):
                raise JsonProblem(path, "should be a finite number")
        elif isinstance(item, int):
            if item.bit_length() > MAX_INTEGER_BITS:
                raise JsonProblem(path, "is too large a number")
        elif item is not None:
            raise JsonProblem(path, f"is a {type(item).__name__}, which is not JSON")


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
