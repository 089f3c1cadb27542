"""MediaItem: one part that was let in; Admitted: those of one request, held until it is answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, overload

from cosmos3_serve.media.sniff import Kind
from cosmos3_serve.reasoner.media.blobs import Blob
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.parts import DataSource
from cosmos3_serve.reasoner.media.picture_cost import PictureCost
from cosmos3_serve.reasoner.media.sampling import Sampling


@dataclass(frozen=True, slots=True)
class MediaItem:
    """One part, let in.

    Args:
        where, turns, param: the part, as in `MediaPart`.
        sha256: of the content that the client named: what sessions, quarantine and statistics go by.
        mime, size, path, info: of the content that replicas get (a normalised copy, where there is one). The path stays
            valid until the `Admitted` is released.
        original: what the client's content is, where `info` is that of a copy.
        options: that change the tokens.
        uuid: of tenant, content, options and recipe together; what replicas cache by.
        cost: tokens and cache bytes; of a video also the frames that a replica will use (`explain`).
        source: the part's; for a data URL that is sent on as it is, its text needs no encoding again.
    """

    kind: Kind
    where: tuple[int, int]
    sha256: str
    mime: str
    size: int
    path: Path
    info: MediaInfo
    original: MediaInfo | None
    options: Mapping[str, Any]
    uuid: str
    cost: Sampling | PictureCost
    source: DataSource | None = None
    turns: str = "messages"

    @property
    def param(self) -> str:
        return f"{self.turns}[{self.where[0]}].content[{self.where[1]}]"


class Admitted(Sequence[MediaItem]):
    """The items of one request, in the order of its parts, in use until `release` (or the end of a `with`).

    `loading`: what its body must tell the loader for the frames of its videos; empty: nothing.
    """

    def __init__(self) -> None:
        self.items: list[MediaItem] = []
        self.blobs: list[Blob] = []
        self.loading: Mapping[str, Any] = {}

    @overload
    def __getitem__(self, index: int) -> MediaItem: ...
    @overload
    def __getitem__(self, index: slice) -> list[MediaItem]: ...
    def __getitem__(self, index: int | slice) -> MediaItem | list[MediaItem]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[MediaItem]:
        return iter(self.items)

    def forget_texts(self) -> None:
        """Let go of data URLs: from here on bytes are read from the store."""
        if self.items:
            self.items = [replace(item, source=None) if item.source is not None else item for item in self.items]

    def release(self) -> None:
        while self.blobs:
            self.blobs.pop().close()

    def __enter__(self) -> Admitted:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()
