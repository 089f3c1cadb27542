"""Pictures, written with Pillow and by hand."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from support.corpus.paint import picture


def save(path: Path, image: Any, form: str | None = None, **options: Any) -> None:
    image.save(path, form or {".jpg": "JPEG", ".png": "PNG", ".webp": "WEBP", ".gif": "GIF"}[path.suffix], **options)


def plain(number: int = 5) -> Any:
    return Image.fromarray(picture(number))


def see_through(path: Path) -> None:
    """The right patch is transparent, and black below that."""
    shown = np.dstack([picture(5), np.full(picture(5).shape[:2], 255, np.uint8)])
    shown[24:84, 80:] = 0
    save(path, Image.fromarray(shown, "RGBA"))


def see_through_palette(path: Path) -> None:
    """As a palette with a transparent entry."""
    flat = plain().quantize(16, dither=Image.Dither.NONE)
    entry = flat.getpixel((120, 50))
    save(path, flat, transparency=entry)


def grey16(path: Path) -> None:
    """The numbered picture in 16 bits of grey: the patches at a quarter and at three quarters of the range."""
    shown = picture(5).astype(np.uint16).mean(axis=2).astype(np.uint16)
    levels = np.where(shown > 127, 65535, 0).astype(np.uint16)
    levels[24:84, :80], levels[24:84, 80:] = 16384, 49152
    save(path, Image.fromarray(levels))


def oriented(path: Path, orientation: int) -> None:
    """The picture, stored so that the EXIF orientation shows it upright."""
    back = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_90",
            7: "TRANSVERSE", 8: "ROTATE_270"}  # fmt: skip
    image = plain()
    if orientation in back:
        image = image.transpose(getattr(Image.Transpose, back[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    save(path, image, exif=exif, quality=95, subsampling=0)


def several(path: Path, form: str) -> None:
    images = [plain(5), plain(6), plain(7)]
    save(
        path, images[0], form, save_all=True, append_images=images[1:], **({"lossless": True} if form == "WEBP" else {})
    )


def profiled(path: Path) -> None:
    """What sRGB shows as the patches, coded in Display P3 with its profile."""
    to_p3 = np.array([[0.8225, 0.1774, 0.0], [0.0332, 0.9669, 0.0], [0.0171, 0.0724, 0.9108]])
    code = picture(5) / 255.0
    light = np.where(code <= 0.04045, code / 12.92, ((code + 0.055) / 1.055) ** 2.4) @ to_p3.T
    coded = np.clip(light, 0, 1) ** (1 / 2.2)
    save(path, Image.fromarray(np.round(coded * 255).astype(np.uint8)), icc_profile=display_p3())


def display_p3() -> bytes:
    """A matrix profile of ICC version 2: Display P3's primaries, a gamma of 2.2."""

    def number(value: float) -> bytes:
        return struct.pack(">i", round(value * 65536))

    def xyz(*values: float) -> bytes:
        return b"XYZ \0\0\0\0" + b"".join(map(number, values))

    name = b"Display P3\0"
    tags = {
        b"desc": b"desc\0\0\0\0" + struct.pack(">I", len(name)) + name + bytes(78),
        b"cprt": b"text\0\0\0\0none\0",
        b"wtpt": xyz(0.9642, 1.0, 0.8249),
        b"rXYZ": xyz(0.51512, 0.24120, -0.00105),
        b"gXYZ": xyz(0.29198, 0.69225, 0.04189),
        b"bXYZ": xyz(0.15710, 0.06657, 0.78407),
        **{key: b"curv\0\0\0\0\0\0\0\1" + struct.pack(">H", round(2.2 * 256)) for key in (b"rTRC", b"gTRC", b"bTRC")},
    }
    table, body = struct.pack(">I", len(tags)), b""
    for key, data in tags.items():
        table += key + struct.pack(">II", 128 + 4 + 12 * len(tags) + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    size = 128 + len(table) + len(body)
    head = struct.pack(">I4sI4s4s4s", size, b"none", 0x02400000, b"mntr", b"RGB ", b"XYZ ") + bytes(12) + b"acsp"
    head += bytes(28) + number(0.9642) + number(1.0) + number(0.8249)
    return head + bytes(128 - len(head)) + table + body


def bomb(path: Path) -> None:
    """A few kilobytes that declare 60000x60000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 60000, 60000, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(60000 // 8 + 1) * 100, 9)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))


def encoded(form: str, **options: Any) -> bytes:
    data = io.BytesIO()
    plain().save(data, form, **options)
    return data.getvalue()
