"""Read a picture: upright, sRGB of 8 bits, on white where it is transparent, or a refusal with the reason.

Pixels are counted from the header before one is decoded. 16 bits are scaled by their full range, never clipped and
never stretched by what the picture holds. A colour profile other than sRGB is converted by LittleCMS. Of an animation
the first frame is read. Runs in the process that reads media: files are hostile.
"""

from __future__ import annotations

import io
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cosmos3_serve.media.colour import on_white
from cosmos3_serve.media.geometry import Pixels
from cosmos3_serve.media.limits import ReadLimits
from cosmos3_serve.media.record import MediaRecord
from cosmos3_serve.media.refusal import Refused, broken, too_large
from cosmos3_serve.media.sniff import IMAGE_COMMAND, Sniffed

SMALLER_IMAGE = "ffmpeg -i INPUT -vf scale=1280:-2 OUTPUT.png"
CROPPED = "crop it, or pad it: ffmpeg -i INPUT -vf pad=iw:iw/4 OUTPUT.png"
_CHUNK = 1 << 20
_ORIENTATION = 0x0112
# EXIF orientation -> (degrees counter-clockwise, mirrored first)
_TURNS = {2: (0, True), 3: (180, False), 4: (180, True), 5: (90, True), 6: (270, False), 7: (270, True), 8: (90, False)}
_SIXTEEN = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N"})


GREY_SCALED = "16 bits of grey scaled to 8"
PROFILE_CONVERTED = "converted from its colour profile to sRGB"
Draw = Callable[[Any], Pixels]


def read_still(path: Path, sniffed: Sniffed, limits: ReadLimits) -> tuple[Pixels, MediaRecord]:
    """The picture, uint8 [H, W, 3], and what was done to it.

    Raises:
        Refused: 413 or 422.
    """
    rgb, record = _open(path, sniffed, limits, draw=True)
    assert rgb is not None
    return rgb, record


def examine_still(path: Path, sniffed: Sniffed, limits: ReadLimits) -> MediaRecord:
    """What `read_still` would do; the picture is decoded, so that damage is found, and not converted. Raises as it."""
    return _open(path, sniffed, limits, draw=False)[1]


def _open(path: Path, sniffed: Sniffed, limits: ReadLimits, *, draw: bool) -> tuple[Pixels | None, MediaRecord]:
    from PIL import Image, UnidentifiedImageError

    if sniffed.name == "png":
        _check_png(path)
    Image.MAX_IMAGE_PIXELS = None  # ours is checked first, with our words
    warnings.simplefilter("ignore")
    try:
        with Image.open(path, formats=[sniffed.name, "mpo"] if sniffed.name == "jpeg" else [sniffed.name]) as image:
            _check_size(image.width, image.height, limits)
            return _read(path, image, sniffed, draw)
    except Refused:
        raise
    except UnidentifiedImageError:
        raise broken("media_corrupt", f"the {sniffed.name} image has no readable header", IMAGE_COMMAND) from None
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise whatever their parsing trips over
        cut = "truncated" in str(error).lower() or isinstance(error, EOFError)
        code = "media_truncated" if cut else "media_corrupt"
        what = "is cut off" if cut else f"does not decode ({type(error).__name__})"
        raise broken(code, f"the {sniffed.name} image {what}", IMAGE_COMMAND) from None


def _check_png(path: Path) -> None:
    """Chunks carry checksums, which Pillow does not compare where the pixels are."""
    with path.open("rb") as file:
        file.seek(8)
        while head := file.read(8):
            length = int.from_bytes(head[:4], "big")
            if len(head) < 8 or length > path.stat().st_size:
                raise broken("media_truncated", "the png image is cut off", IMAGE_COMMAND)
            check = zlib.crc32(head[4:])
            while length > 0 and (data := file.read(min(length, _CHUNK))):
                check, length = zlib.crc32(data, check), length - len(data)
            stored = file.read(4)
            if length or len(stored) < 4:
                raise broken("media_truncated", "the png image is cut off", IMAGE_COMMAND)
            if int.from_bytes(stored, "big") != check:
                raise broken("media_corrupt", "the png image is damaged: a checksum is wrong", IMAGE_COMMAND)
            if head[4:] == b"IEND":
                return
    raise broken("media_truncated", "the png image is cut off", IMAGE_COMMAND)


def _check_size(width: int, height: int, limits: ReadLimits) -> None:
    if width < 1 or height < 1:
        raise broken("media_no_pixels", "the file declares a picture size that no decoder takes", IMAGE_COMMAND)
    if width * height > limits.max_image_pixels:
        raise too_large(
            "media_too_many_pixels",
            f"a picture of {width}x{height} pixels is more than {limits.max_image_pixels} pixels",
            SMALLER_IMAGE,
        )
    if max(width, height) > limits.max_aspect * min(width, height):
        raise broken("media_aspect_extreme", f"{width}x{height} pixels are too long a strip", CROPPED)


def _read(path: Path, image: Any, sniffed: Sniffed, draw: bool) -> tuple[Pixels | None, MediaRecord]:
    conversions: list[str] = []
    notes: list[str] = []
    turn, mirrored = _TURNS.get(_orientation(image), (0, False))
    mode, stored, profile = str(image.mode), image.size, image.info.get("icc_profile")
    if getattr(image, "is_animated", False):
        notes.append("of several pictures the first was read")
    image.load()
    alpha = image.has_transparency_data
    drawn = _drawing(image, profile, conversions, notes)
    if mirrored:
        conversions.append("mirrored")
    if turn:
        conversions.append(f"turned by {turn} degrees")
    width, height = stored[::-1] if turn % 180 else stored
    record = MediaRecord(
        kind="image",
        mime=sniffed.mime,
        container=sniffed.name,
        codec=sniffed.name,
        size=path.stat().st_size,
        width=width,
        height=height,
        stored_width=stored[0],
        stored_height=stored[1],
        pixel_format=mode,
        bit_depth=16 if mode in _SIXTEEN else 1 if mode == "1" else 8,
        matrix="gbr",
        range="pc",
        transfer="iec61966-2-1" if not profile else "unspecified",
        rotation=turn,
        mirrored=mirrored,
        alpha=bool(alpha),
        conversions=tuple(conversions),
        notes=tuple(notes),
    )
    if not draw:
        return None, record
    rgb = drawn(image)
    rgb = np.fliplr(rgb) if mirrored else rgb
    return np.ascontiguousarray(np.rot90(rgb, turn // 90)), record


def _drawing(image: Any, profile: bytes | None, conversions: list[str], notes: list[str]) -> Draw:
    """How the loaded picture becomes sRGB, and what to call that."""
    if image.mode in _SIXTEEN:
        conversions.append(GREY_SCALED)
        return _scaled
    convert = _to_srgb(image, profile, notes) if profile else None
    if convert is not None:
        conversions.append(PROFILE_CONVERTED)
    elif image.mode == "CMYK":
        conversions.append("CMYK converted without a profile")
    if image.has_transparency_data:
        conversions.append("transparency shown on white")
        return lambda loaded: _on_white(loaded, convert)
    return lambda loaded: np.asarray((convert or _plain)(loaded), dtype=np.uint8)


def _plain(image: Any) -> Any:
    return image.convert("RGB")


def _scaled(image: Any) -> Pixels:
    grey: Pixels = (np.clip(np.asarray(image).astype(np.int64), 0, 65535) >> 8).astype(np.uint8)
    spread: Pixels = np.repeat(grey[..., None], 3, axis=2)
    return spread


def _on_white(image: Any, convert: Callable[[Any], Any] | None) -> Pixels:
    rgba = image.convert("RGBA")
    colours = rgba.convert("RGB")
    return on_white(np.dstack([np.asarray(convert(colours) if convert else colours), np.asarray(rgba)[..., 3]]))


def _to_srgb(image: Any, profile: bytes, notes: list[str]) -> Callable[[Any], Any] | None:
    """None: the profile is sRGB already, or none that fits the picture, which viewers ignore too."""
    from PIL import ImageCms

    mode = "RGB" if image.mode in ("P", "PA", "RGBA", "RGBX") else image.mode
    if mode not in ("RGB", "CMYK"):
        return None  # of grey only the tone curve could differ
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if "srgb" in ImageCms.getProfileDescription(source).lower():
            return None
        transform = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        notes.append("a colour profile that cannot be used was ignored")
        return None
    return lambda loaded: ImageCms.applyTransform(loaded if loaded.mode == mode else loaded.convert(mode), transform)


def _orientation(image: Any) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # a broken EXIF block; viewers ignore it too
        return 1
