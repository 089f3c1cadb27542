"""What a JPEG's markers say of its size, without decoding."""

from __future__ import annotations

from collections.abc import Iterator

_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE = frozenset((0x00, 0x01, *range(0xD0, 0xDA)))  # stuffing, TEM, restarts, SOI and EOI: no length follows


def jpeg_sizes(data: bytes) -> Iterator[tuple[int, int]]:
    """Width and height of every frame header outside other segments; entropy-coded data hold none."""
    at = 0
    while (at := data.find(b"\xff", at)) >= 0 and at + 1 < len(data):
        marker = data[at + 1]
        if marker == 0xFF:  # fill
            at += 1
            continue
        if marker in _BARE:
            at += 2
            continue
        if marker in _FRAME and at + 9 <= len(data):
            yield int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big")
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
