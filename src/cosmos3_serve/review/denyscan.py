"""The second guard of shareable evidence: the finished text, searched for every name that must not be in it.

The allow-list is what keeps names out. This scan exists so that a mistake in it is found before a file is written, not
after it was shared. A true record holds words of its schema, hashes, numbers and versions; a name is looked for in
everything that is no word of the schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel

SHORTEST = 4  # shorter names are found in any hash
SHORTEST_NUMBER = 6
HASHES = re.compile(r"(sha256:)?[0-9a-f]{40}(?:[0-9a-f]{24})?")
# A hash of 64 digits holds any given 12 by chance once in 10^13; shorter ones too often to mean anything.
SHORTEST_HEX = 12
NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
PARTS = re.compile(r"[\s/:@?&=,;|\"'<>()\[\]{}\\]+")
# What no value of a record may look like, whoever it names.
SHAPES = {
    "an address": re.compile(
        r"://|(?<![\d.])\d{1,3}(\.\d{1,3}){3}(?![\d.])|\[?[0-9a-fA-F]{0,4}(:[0-9a-fA-F]{0,4}){3,}"
    ),
    "a path": re.compile(r"[\\/]"),
    "a mail address or user": re.compile(r"@"),
}


def texts_in(value: Any) -> Iterator[tuple[str, str]]:
    """Every text in a JSON value with the key that it stands under; keys are texts too."""
    pending: list[tuple[str, Any]] = [("", value)]
    while pending:
        under, item = pending.pop()
        if isinstance(item, str):
            yield under, item
        elif isinstance(item, dict):
            yield from (("", key) for key in item if isinstance(key, str))
            pending.extend((str(key), child) for key, child in item.items())
        elif isinstance(item, list):
            pending.extend((under, child) for child in item)


def with_parts(texts: Iterable[str]) -> set[str]:
    """The texts and the words that they are made of, lower case, without what is too short to be looked for."""
    found: set[str] = set()
    for text in texts:
        low = text.casefold()
        words = {low, *PARTS.split(low)}
        words |= {part for word in words for part in word.split(".") if "." in word}
        found |= {word for word in words if len(word) >= SHORTEST}
    return found


@cache
def vocabulary(model: type[BaseModel]) -> frozenset[str]:
    """Every word that the schema itself allows: field names, enumerated and constant values."""
    found: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            found.update(node.get("properties", {}))
            found.update(value for value in [*node.get("enum", []), node.get("const")] if isinstance(value, str))
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    walk(model.model_json_schema())
    return frozenset(found)


def leaks(text: str, allowed: frozenset[str], names: set[str]) -> list[str]:
    """What must not be shared, as words about it; the names themselves are not repeated.

    Args:
        text: the finished JSON text.
        allowed: words of the schema, from `vocabulary`, and other constants.
        names: from `with_parts`.
    """
    found = []
    for value in values_of(text):
        if value in allowed:
            continue
        shape = next((what for what, pattern in SHAPES.items() if pattern.search(value)), None)
        if shape and not HASHES.fullmatch(value):
            found.append(shape)
        elif _named(value, names):
            found.append("a known name")
    return sorted(set(found))


def values_of(text: str) -> Iterator[str]:
    """Every key and every value of a JSON text, numbers as they are written."""
    pending = [json.loads(text, parse_float=str, parse_int=str)]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            yield from item
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, str):
            yield item


def _named(value: str, names: set[str]) -> bool:
    low = value.casefold().removeprefix("diffusers-").removeprefix("sha256:")
    if NUMBER.fullmatch(low):
        return len(low) >= SHORTEST_NUMBER and low in names
    if HASHES.fullmatch(low):
        return any(len(name) >= SHORTEST_HEX and name in low for name in names)
    return any(name in low for name in names)
