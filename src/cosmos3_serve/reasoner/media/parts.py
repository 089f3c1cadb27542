"""MediaPart: one image or video of a chat body, and where its bytes are to come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cosmos3_serve.media.sniff import Kind
from cosmos3_serve.reasoner.media.frame_options import FrameOptions


@dataclass(frozen=True, slots=True)
class DataSource:
    """A data URL: its declared type and the base64 text, still inside the request's body.

    `text` is a view: it keeps the body alive and copies nothing. `plain`: it is still raw JSON text, in which a control
    character is an error.
    """

    mime: str
    text: memoryview
    base64: bool = True
    plain: bool = False


@dataclass(frozen=True, slots=True)
class UrlSource:
    """An https, http or s3 URL as the client wrote it."""

    scheme: Literal["https", "http", "s3"]
    url: str


@dataclass(frozen=True, slots=True)
class FileSource:
    """`file-id:<id>`: an upload of the same tenant."""

    file_id: str


Source = DataSource | UrlSource | FileSource


@dataclass(frozen=True, slots=True)
class MediaPart:
    """
    Args:
        kind: what the part says it is.
        where: index of the message (of the item, in `input`), index of the part in its content.
        source: where the bytes are.
        options: everything in the request that changes the tokens made of the bytes, besides `frames`: the request's
            `mm_processor_kwargs` and `media_io_kwargs`.
        turns: the field of the body that holds the conversation.
        frames: which frames of its videos the request asks for; None leaves it to the model.
    """

    kind: Kind
    where: tuple[int, int]
    source: Source
    options: Mapping[str, Any] = field(default_factory=dict)
    turns: str = "messages"
    frames: FrameOptions | None = None

    @property
    def param(self) -> str:
        return f"{self.turns}[{self.where[0]}].content[{self.where[1]}]"
