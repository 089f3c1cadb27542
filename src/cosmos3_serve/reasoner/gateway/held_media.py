"""What a gateway believes each replica to hold, so that bytes are sent once.

A part goes to a replica as `uuid` without data when the replica is believed to hold the item, and with data otherwise.
The belief mirrors the replica's own cache: least recently used, bounded by bytes and items. It may be wrong, since
other gateways fill the same cache; the replica then answers 400 with a cache miss and the same parts are sent again
with bytes, to the same replica.

The uuid is made here and never by a client: a replica takes it for the content, and a collision would serve another
video's answer.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cosmos3_serve.errors import UsageError
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef

_SHA256 = re.compile(r"[0-9a-f]{64}")


def media_uuid(kind: str, sha256: str, options: Mapping[str, Any]) -> str:
    """The name under which replicas cache one item: 64 hex digits over kind, content, and every processing option that
    changes the tokens made of it.

    Args:
        kind: `video` or `image`.
        sha256: of the bytes, lower-case hex.
        options: JSON values; an integral float equals the integer, a missing option does not equal null.

    Raises:
        ValueError: not a SHA-256, or an option that JSON cannot tell apart (NaN, infinity, other types).
    """
    if not _SHA256.fullmatch(sha256):
        raise ValueError("a media uuid needs the SHA-256 of the content in lower-case hex")
    try:
        text = json.dumps([kind, sha256, _canonical(options)], sort_keys=True, allow_nan=False, separators=(",", ":"))
    except TypeError as error:
        raise ValueError(f"a processing option is no JSON value: {error}") from None
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("an option's name is not a string")
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    return value


@dataclass(frozen=True, slots=True)
class MediaPart:
    """One media part of a request: its uuid, and the bytes that it takes in the replica's cache once processed."""

    uuid: str
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class PartPlan:
    """How to send one part; the data itself is the caller's."""

    uuid: str
    with_data: bool


@dataclass(slots=True)
class _Held:
    incarnation: int
    items: OrderedDict[str, int] = field(default_factory=OrderedDict)
    bytes: int = 0


class ReplicaMedia:
    """
    Args:
        max_bytes, max_items: the replica's cache.

    Raises:
        UsageError: a capacity that is not positive.
    """

    def __init__(self, *, max_bytes: int, max_items: int) -> None:
        if max_bytes < 1 or max_items < 1:
            raise UsageError("the capacity of a replica's media cache must be positive")
        self._max_bytes, self._max_items = max_bytes, max_items
        self._replicas: dict[str, _Held] = {}

    def plan(self, parts: Sequence[MediaPart], replica: ReplicaRef) -> list[PartPlan]:
        """How to send these parts, in their order. Changes nothing: a belief is only made by an answer.

        Parts that do not fit into the cache together all go with data: the first would be gone when the last arrives.
        """
        held = self._held(replica)
        distinct = {part.uuid: part.cache_bytes for part in parts}
        fits = sum(distinct.values()) <= self._max_bytes and len(distinct) <= self._max_items
        return [PartPlan(p.uuid, not (fits and held is not None and p.uuid in held.items)) for p in parts]

    def holds_all(self, parts: Sequence[MediaPart], replica: ReplicaRef) -> bool:
        """Whether the request is warm there (`x-cosmos3-media: hit`)."""
        return all(not part.with_data for part in self.plan(parts, replica))

    def on_answer(self, parts: Sequence[MediaPart], replica: ReplicaRef) -> None:
        """The replica answered a request with these parts: it holds them now, and has dropped what they displace."""
        held = self._replicas.get(replica.id)
        if held is None:
            held = self._replicas[replica.id] = _Held(replica.incarnation)
        if held.incarnation != replica.incarnation:
            if held.incarnation > replica.incarnation:
                return  # an answer from an earlier life
            held = self._replicas[replica.id] = _Held(replica.incarnation)
        for part in parts:
            held.bytes -= held.items.pop(part.uuid, 0)
            if part.cache_bytes > self._max_bytes:
                continue  # larger than the whole cache: never kept
            held.items[part.uuid] = part.cache_bytes
            held.bytes += part.cache_bytes
            while held.bytes > self._max_bytes or len(held.items) > self._max_items:
                held.bytes -= held.items.popitem(last=False)[1]

    def on_miss(self, parts: Sequence[MediaPart], replica: ReplicaRef) -> list[PartPlan]:
        """The replica lacks at least one part that went without data: send all of them with data.

        What was used before the least recently used of these parts is doubted too: the replica's cache drops
        its oldest first, so what is older than a lost item is lost.
        """
        held = self._held(replica)
        if held is not None:
            lost = next((uuid for uuid in held.items if uuid in {p.uuid for p in parts}), None)
            while lost is not None and held.items:
                uuid, size = held.items.popitem(last=False)
                held.bytes -= size
                if uuid == lost:
                    break
            for part in parts:
                held.bytes -= held.items.pop(part.uuid, 0)
        return [PartPlan(part.uuid, True) for part in parts]

    def on_incarnation(self, replica: ReplicaRef) -> None:
        """The replica (re)started: its caches are empty."""
        held = self._replicas.get(replica.id)
        if held is None or held.incarnation < replica.incarnation:
            self._replicas[replica.id] = _Held(replica.incarnation)

    def keep_only(self, replica_ids: Sequence[str]) -> None:
        """Forget replicas that left the fleet."""
        self._replicas = {i: held for i, held in self._replicas.items() if i in replica_ids}

    def _held(self, replica: ReplicaRef) -> _Held | None:
        held = self._replicas.get(replica.id)
        return held if held is not None and held.incarnation == replica.incarnation else None
