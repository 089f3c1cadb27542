"""The body that one replica gets: each media part as its uuid alone, or with its bytes as a data URL.

A big body is never built in one piece. It is a list of pieces: JSON between the media, the client's own base64 where it
can be used as it is, and files of the store that are read and encoded while they are sent.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pybase64 import b64encode

from cosmos3_serve.errors import StorageFailure
from cosmos3_serve.reasoner.gateway.held_media import MediaPart, PartPlan
from cosmos3_serve.reasoner.media.item import MediaItem

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
JOINED_BYTES = 4 * 1024 * 1024  # smaller bodies are sent in one piece
SLICE = 256 * 1024
FILE_SLICE = 3 * SLICE  # a multiple of 3, so that the encoded slices join


@dataclass(frozen=True, slots=True)
class FilePiece:
    """A file of the store, to be sent as base64."""

    path: Path
    size: int

    def __len__(self) -> int:
        return encoded_size(self.size)


Piece = bytes | memoryview | FilePiece


@dataclass(frozen=True, slots=True)
class Payload:
    """A request body; `size` in bytes is exact."""

    pieces: tuple[Piece, ...]

    def release(self) -> None:
        """It was sent: let go of what it holds."""
        object.__setattr__(self, "pieces", ())

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))

    def joined(self) -> bytes | None:
        """The whole body where that is cheap."""
        if self.size > JOINED_BYTES or any(isinstance(piece, FilePiece) for piece in self.pieces):
            return None
        return b"".join(self.pieces)  # type: ignore[arg-type]

    async def slices(self) -> AsyncIterator[bytes]:
        """
        Raises:
            StorageFailure: a file is not what it was.
        """
        for piece in self.pieces:
            if isinstance(piece, FilePiece):
                async for encoded in _encoded(piece):
                    yield encoded
                continue
            for start in range(0, len(piece), SLICE):
                yield bytes(piece[start : start + SLICE])


async def _encoded(piece: FilePiece) -> AsyncIterator[bytes]:
    sent = 0
    try:
        file = await asyncio.to_thread(piece.path.open, "rb")
        try:
            while sent < piece.size:
                encoded, read = await asyncio.to_thread(_encode_next, file)
                if not read:
                    break
                sent += read
                yield encoded
        finally:
            file.close()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StorageFailure(f"a stored media file cannot be read: {reason}", code="media_store_failed") from None
    if sent != piece.size:
        raise StorageFailure("a stored media file is shorter than it was", code="media_store_failed")


def _encode_next(file: Any) -> tuple[bytes, int]:
    data = file.read(FILE_SLICE)
    return b64encode(data), len(data)


def compose(body: dict[str, Any], items: Sequence[MediaItem], plans: Sequence[PartPlan]) -> Payload:
    """The body for a replica.

    Args:
        body: with the media left out, as `locate` leaves it; changed in place, and good for another `compose`.
        items, plans: one each per media part, in the same order.
    """
    nonce = secrets.token_hex(16) if items else ""
    words: list[tuple[bytes, MediaItem]] = []
    for number, (item, plan) in enumerate(zip(items, plans, strict=True)):
        content = body[item.turns][item.where[0]]["content"]
        part = content[item.where[1]]
        word = f"{nonce}-{number}"
        if plan.with_data:
            words.append((word.encode(), item))
        key = "video_url" if item.kind == "video" else "image_url"
        url = word if item.turns == "input" else {"url": word}
        content[item.where[1]] = {**part, key: url if plan.with_data else None, "uuid": plan.uuid}
    rest = _encode(body).encode()
    pieces: list[Piece] = []
    for mark, item in words:
        before, _, rest = rest.partition(mark)
        pieces += (before, f"data:{item.mime};base64,".encode(), _data(item))
    return Payload((*pieces, rest))


def _data(item: MediaItem) -> Piece:
    source = item.source
    if source is not None and source.base64 and _is_exact(source.text, item.size):
        return source.text
    return FilePiece(item.path, item.size)


def _is_exact(text: memoryview, size: int) -> bool:
    """Whether a text that decoded to `size` bytes holds the alphabet and full padding only: nothing else has room."""
    padding = -size % 3
    return len(text) == encoded_size(size) and bytes(text[len(text) - padding :]) == b"=" * padding


def encoded_size(size: int) -> int:
    return (size + 2) // 3 * 4


def held_parts(items: Sequence[MediaItem]) -> list[MediaPart]:
    """The items as `ReplicaMedia` counts them."""
    return [MediaPart(item.uuid, item.cost.patch_bytes) for item in items]
