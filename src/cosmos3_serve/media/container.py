"""Open a file as one of the containers that are taken, and prove that none of it is missing by what it declares.

FFmpeg's demuxers for playlists and device files would open other files and addresses; those of the whitelist open none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from cosmos3_serve.media.refusal import COMMAND, Refused, broken

FORMATS = "mov,mp4,matroska,webm,avi,mpegts,gif"
_OPEN = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}
TRUNCATED = "the file is cut off: send all of it"
TS_PACKET = 188
_SEGMENT, _CLUSTER = 0x18538067, 0x1F43B675


def open_video(path: Path, **options: str) -> Any:
    """
    Raises:
        Refused: FFmpeg cannot open it as one of the containers that are taken.
    """
    import av

    try:
        return av.open(str(path), options={**_OPEN, **options}, metadata_errors="replace")
    except (av.FFmpegError, ValueError) as error:
        raise broken(
            "media_truncated",
            f"the file cannot be opened as a video ({words(error)}): cut off, or damaged at its start or end",
            f"send the whole file, or rewrite it: {COMMAND}",
        ) from None


def words(error: Exception) -> str:
    """An FFmpeg error in its own words, without a path."""
    said = str(error) if isinstance(error, ValueError) and "/" not in str(error) else ""
    return str(getattr(error, "strerror", "") or said or type(error).__name__)[:80]


def check_whole(path: Path, container: str) -> None:
    """Compare the sizes that a container's own structure declares with the file's.

    Args:
        container: as sniffed: mp4, matroska, avi, mpegts or gif.

    Raises:
        Refused: `media_truncated`.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        needed = _NEEDED[container](file, size) if container in _NEEDED else 0
    if needed > size:
        raise missing(f"its structure declares {needed} bytes, {size} are there")


def missing(what: str) -> Refused:
    return broken("media_truncated", f"the video is cut off: {what}", TRUNCATED)


def _packets(_file: BinaryIO, size: int) -> int:
    """The last packet of a transport stream must be whole."""
    return -(-size // TS_PACKET) * TS_PACKET


def _boxes(file: BinaryIO, size: int) -> int:
    """Where the last top-level box that lies in the file ends. What no box can be is padding, and ends the walk."""
    at = end = 0
    while at + 8 <= size:
        file.seek(at)
        head = file.read(16)
        length, kind = int.from_bytes(head[:4], "big"), head[4:8]
        if not all(0x20 <= byte < 0x7F or byte == 0xA9 for byte in kind):
            break
        if length == 1 and len(head) == 16:
            length = int.from_bytes(head[8:], "big")
        if length == 0:  # to the end of the file
            return size
        if length < 8:
            break
        end = at = at + length
    return end


def _segment(file: BinaryIO, size: int) -> int:
    """Where a Matroska file's segment ends. One that was written without knowing its size is walked element by element,
    through clusters of unknown size: its last element must be whole."""
    at, inside = 0, False
    while at < size:
        file.seek(at)
        head = file.read(16)
        number, width = _vint(head, keep=True)
        length, more = _vint(head[width:], keep=False)
        if not width or not more:
            return size + 1 if inside and at + 12 > size else 0
        at += width + more
        unknown = length == (1 << 7 * more) - 1
        if number == _SEGMENT and not unknown:
            return at + length
        if number in (_SEGMENT, _CLUSTER) and unknown:
            inside = True
        elif unknown:
            return 0
        else:
            at += length
    return at if inside else 0


def _vint(data: bytes, *, keep: bool) -> tuple[int, int]:
    """An EBML number and the bytes it takes; `keep`: with its length marker, as identifiers are written."""
    if not data or not data[0]:
        return 0, 0
    width = 9 - data[0].bit_length()
    if width > len(data):
        return 0, 0
    value = int.from_bytes(data[:width], "big")
    return (value if keep else value & ((1 << 7 * width) - 1)), width


def _riff(file: BinaryIO, size: int) -> int:
    """Where the last RIFF of an AVI ends. A recorder that was switched off leaves 0."""
    at = end = 0
    while at + 8 <= size:
        file.seek(at)
        head = file.read(8)
        length = int.from_bytes(head[4:], "little")
        if head[:4] != b"RIFF" or length in (0, 0xFFFFFFFF):
            break
        end = at + 8 + length
        at = end + length % 2
    return end


def _gif(file: BinaryIO, size: int) -> int:
    """A GIF ends in its trailer; one byte more than there is where it does not."""
    file.seek(max(0, size - 64))
    return 0 if file.read().rstrip(b"\0").endswith(b"\x3b") else size + 1


_NEEDED = {"mp4": _boxes, "matroska": _segment, "avi": _riff, "gif": _gif, "mpegts": _packets}
