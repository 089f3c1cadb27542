"""What the first bytes of a content say it is. Names and types prove nothing; this decides what may be opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cosmos3_serve.media.refusal import COMMAND, bad, unsupported

Kind = Literal["image", "video"]
HEAD_BYTES = 4096
IMAGE_COMMAND = "ffmpeg -i INPUT OUTPUT.png"


@dataclass(frozen=True, slots=True)
class Sniffed:
    """
    Args:
        kind: image, video, or (for what is refused) audio, text or other.
        name: container or format.
        mime: by content.
        taken: whether the gate opens it at all.
    """

    kind: str
    name: str
    mime: str
    taken: bool = True


_JPEG = Sniffed("image", "jpeg", "image/jpeg")
_PNG = Sniffed("image", "png", "image/png")
_WEBP = Sniffed("image", "webp", "image/webp")
_GIF = Sniffed("image", "gif", "image/gif")
_MP4 = Sniffed("video", "mp4", "video/mp4")
_MOV = Sniffed("video", "mp4", "video/quicktime")
_MKV = Sniffed("video", "matroska", "video/x-matroska")
_WEBM = Sniffed("video", "matroska", "video/webm")
_AVI = Sniffed("video", "avi", "video/x-msvideo")
_TS = Sniffed("video", "mpegts", "video/mp2t")

_OTHERS = (
    (b"BM", Sniffed("image", "bmp", "image/bmp", False)),
    (b"II*\0", Sniffed("image", "tiff", "image/tiff", False)),
    (b"MM\0*", Sniffed("image", "tiff", "image/tiff", False)),
    (b"\0\0\x01\0", Sniffed("image", "ico", "image/x-icon", False)),
    (b"\xff\x0a", Sniffed("image", "jpeg-xl", "image/jxl", False)),
    (b"FLV\x01", Sniffed("video", "flv", "video/x-flv", False)),
    (b"OggS", Sniffed("video", "ogg", "video/ogg", False)),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", Sniffed("video", "asf", "video/x-ms-wmv", False)),
    (b"\0\0\x01\xba", Sniffed("video", "mpeg-ps", "video/mpeg", False)),
    (b"\0\0\x01\xb3", Sniffed("video", "mpeg-es", "video/mpeg", False)),
    (b"ID3", Sniffed("audio", "mp3", "audio/mpeg", False)),
    (b"fLaC", Sniffed("audio", "flac", "audio/flac", False)),
    (b"%PDF", Sniffed("other", "pdf", "application/pdf", False)),
    (b"PK\x03\x04", Sniffed("other", "zip", "application/zip", False)),
    (b"\x1f\x8b", Sniffed("other", "gzip", "application/gzip", False)),
)
_FTYP_IMAGES = (b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1", b"avif", b"avis", b"hevc", b"hevx")
_BOXES = (b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"moof", b"styp")


def sniff(head: bytes) -> Sniffed:
    """Args: head: the first `HEAD_BYTES` (or all there is)."""
    if head[:3] == b"\xff\xd8\xff":
        return _JPEG
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return _PNG
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return _GIF
    if head[:4] == b"RIFF":
        kind = head[8:12]
        wave = Sniffed("audio", "wav", "audio/wav", False)
        return {b"WEBP": _WEBP, b"AVI ": _AVI, b"WAVE": wave}.get(kind, _unknown(head))
    if head[4:8] == b"ftyp":
        return _ftyp(head[8:12])
    if head[4:8] in _BOXES:
        return _MP4
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return _WEBM if b"webm" in head[:64] else _MKV
    if len(head) >= 377 and head[0] == head[188] == head[376] == 0x47:
        return _TS
    for magic, sniffed in _OTHERS:
        if head.startswith(magic):
            return sniffed
    return _unknown(head)


def _ftyp(brand: bytes) -> Sniffed:
    if brand == b"qt  ":
        return _MOV
    if brand in _FTYP_IMAGES:
        name = "avif" if brand in (b"avif", b"avis") else "heic"
        return Sniffed("image", name, f"image/{name}", False)
    return _MP4


def _unknown(head: bytes) -> Sniffed:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:512]
    if text[:1] == b"<":
        page = text.lower()
        if page.startswith((b"<!doctype html", b"<html")) or b"<head" in page:
            return Sniffed("text", "html", "text/html", False)
        return Sniffed("text", "xml", "application/xml", False)
    if text and all(byte >= 0x20 or byte in b"\t\r\n" for byte in text):
        name = "json" if text[:1] in b"{[" else "text"
        return Sniffed("text", name, "application/json" if name == "json" else "text/plain", False)
    return Sniffed("other", "unknown", "application/octet-stream", False)


def check_sniffed(sniffed: Sniffed, kind: Kind) -> None:
    """Compare content with what the part says that it is.

    Raises:
        Refused: 400 `media_not_media` for text (an error page, most often); 415 otherwise.
    """
    if sniffed.kind in ("text", "other", "audio"):
        what = "nothing that this service knows" if sniffed.name == "unknown" else f"{sniffed.name} ({sniffed.mime})"
        status = bad if sniffed.kind == "text" else unsupported
        raise status(
            "media_not_media", f"the {kind} is {what}, whatever it is called", "check what the URL really holds"
        )
    if sniffed.kind != kind and not (kind == "video" and sniffed is _GIF):
        found, article = ("image", "an image") if sniffed.kind == "image" else ("video", "a video")
        raise unsupported(
            "media_type_mismatch",
            f"the {kind} is {article} ({sniffed.mime}), whatever it is called",
            f"send it as {found}: {found}_url in a question, a file name with that suffix in a batch",
        )
    if not sniffed.taken:
        command = COMMAND if kind == "video" else IMAGE_COMMAND
        raise unsupported("media_type_unsupported", f"{sniffed.name} {kind}s are not taken", command)


def check_declared(declared: str, mime: str) -> None:
    """Compare a client's own type with the content's.

    Args:
        declared: without parameters, lower-case; `""` for none.
        mime: by content.

    Raises:
        Refused: 415 `media_type_mismatch`.
    """
    if not (declared in _ANY or any(declared in family and mime in family for family in _FAMILIES)):
        raise unsupported("media_type_mismatch", f"the type says {declared[:60]}, the content is {mime}", f"say {mime}")


_FAMILIES = (
    {"video/mp4", "video/quicktime", "video/x-m4v", "video/3gpp", "video/3gpp2", "application/mp4", "video/mov"},
    {"video/webm", "video/x-matroska", "video/matroska"},
    {"video/x-msvideo", "video/avi", "video/msvideo", "video/vnd.avi"},
    {"video/mp2t", "video/mpeg"},
    {"image/jpeg", "image/jpg", "image/pjpeg"},
    {"image/png", "image/apng", "image/x-png"},
    {"image/webp"},
    {"image/gif", "video/gif"},
)
_ANY = frozenset(
    {"", "application/octet-stream", "binary/octet-stream", "application/x-octet-stream", "video/*", "image/*"}
)


def essence(mime: str) -> str:
    """The type without parameters, lower-cased: `VIDEO/MP4; codecs=…` is `video/mp4`."""
    return mime.partition(";")[0].strip().lower()
