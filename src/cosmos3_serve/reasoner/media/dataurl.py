"""Data URLs: the declared type, and the bytes."""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Callable
from typing import cast
from urllib.parse import unquote_to_bytes

from cosmos3_serve.media.refusal import bad, too_large, unsupported
from cosmos3_serve.media.sniff import Kind
from cosmos3_serve.reasoner.media.parts import DataSource


def _decoder() -> Callable[..., bytes]:
    """pybase64's where it is installed (the `reasoner` extra brings it): fifty times faster than the standard one."""
    try:
        module = importlib.import_module("pybase64")
    except ImportError:
        module = base64
    return cast(Callable[..., bytes], module.b64decode)


_b64decode = _decoder()
MAX_HEADER = 256
FRAMES_REMEDY = "join the frames to one video: ffmpeg -framerate 2 -i FRAME%04d.jpg OUTPUT.mp4, or send image_url parts"


def parse_data_url(url: memoryview, kind: Kind) -> DataSource:
    """Split `data:[type][;parameters][;base64],text`; the text is not looked at.

    Raises:
        Refused: no comma near the start; a sequence of JPEG frames (`video/jpeg`), which is no video file.
    """
    head = bytes(url[: MAX_HEADER + 5])
    comma = head.find(b",")
    if head[:5].lower() != b"data:" or comma < 0:
        raise bad("media_url_invalid", "the data URL has no comma after its type", "write data:video/mp4;base64,...")
    try:
        words = head[5:comma].decode("ascii").split(";")
    except UnicodeDecodeError:
        raise bad("media_url_invalid", "the data URL's type is not ASCII") from None
    mime = words[0].strip().lower()
    if mime == "video/jpeg":
        raise unsupported(
            "media_frames_unsupported",
            "video/jpeg (JPEG frames joined by commas) is not taken: it has no frame times",
            FRAMES_REMEDY,
        )
    encoded = any(word.strip().lower() == "base64" for word in words[1:])
    return DataSource(mime, url[comma + 1 :], encoded)


def decoded_size(source: DataSource) -> int:
    """Upper bound of the bytes, known before decoding."""
    return len(source.text) * 3 // 4 if source.base64 else len(source.text)


def decode(source: DataSource, max_bytes: int) -> bytes:
    """The bytes of a data URL. Blocking: 0.1 ms a MiB.

    Raises:
        Refused: empty, larger than `max_bytes`, or not base64.
    """
    if decoded_size(source) > max_bytes + 3:
        raise too_large("media_too_large", f"the data URL holds more than {max_bytes} bytes", "upload it or shrink it")
    if not source.base64:
        data = unquote_to_bytes(bytes(source.text))
    else:
        data = _base64(source.text, source.plain)
    if not data:
        raise bad("media_empty", "the data URL holds 0 bytes")
    return data


def _base64(text: memoryview, plain: bool) -> bytes:
    try:
        return bytes(_b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        pass
    try:
        # What browsers and curl make: line ends, percent signs of a careful encoder, missing padding.
        clean = bytes(text).translate(None, b" " if plain else b"\r\n\t ")
        clean = unquote_to_bytes(clean) if b"%" in clean else clean
        return bytes(_b64decode(clean + b"=" * (-len(clean) % 4), validate=True))
    except (binascii.Error, ValueError) as error:
        raise bad(
            "media_base64_invalid", f"the data URL is not base64 ({_first_words(error)})", "encode the whole file once"
        ) from None


def _first_words(error: Exception) -> str:
    return str(error)[:60] or type(error).__name__
