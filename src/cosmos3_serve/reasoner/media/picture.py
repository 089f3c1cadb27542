"""Facts about an image. Runs in the probe's process only.

Pixels are counted from the header before one is decoded; then the whole image is decoded, so that a cut or damaged file
is found here. Replicas turn by EXIF themselves, show an animation's first frame, and put transparency on white.
"""

from __future__ import annotations

import warnings
from pathlib import Path

from cosmos3_serve.media.refusal import Refused, broken
from cosmos3_serve.media.sniff import IMAGE_COMMAND, Sniffed
from cosmos3_serve.reasoner.media.examine import check_pixels
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.limits import MediaLimits

_EXIF_ORIENTATION = 0x0112
# EXIF orientation -> (degrees counter-clockwise, mirrored first)
_TURNS = {2: (0, True), 3: (180, False), 4: (180, True), 5: (90, True), 6: (270, False), 7: (270, True), 8: (90, False)}


def examine_image(path: Path, sniffed: Sniffed, limits: MediaLimits) -> MediaInfo:
    """
    Raises:
        Refused: 413 or 422.
    """
    from PIL import Image, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = None  # ours is checked first, with our words
    warnings.simplefilter("ignore")
    try:
        with Image.open(path, formats=[sniffed.name]) as image:
            check_pixels(image.width, image.height, limits.max_image_pixels, "picture")
            if max(image.size) > limits.max_aspect * min(image.size):
                raise broken("media_aspect_extreme", f"{image.width}x{image.height} pixels are too long a strip")
            # The header's orientation: replicas turn by it after decoding.
            turn, mirrored = _TURNS.get(_orientation(image), (0, False))
            mode, (width, height) = image.mode, image.size
            image.load()
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
    return MediaInfo(
        kind="image",
        mime=sniffed.mime,
        container=sniffed.name,
        codec=sniffed.name,
        pixel_format=mode,
        width=height if turn % 180 else width,
        height=width if turn % 180 else height,
        frames=1,
        fps=0.0,
        duration_s=0.0,
        size=path.stat().st_size,
        rotation=turn,
        mirrored=mirrored,
    )


def _orientation(image: object) -> int:
    try:
        return int(image.getexif().get(_EXIF_ORIENTATION, 1))  # type: ignore[attr-defined]
    except Exception:  # a broken EXIF block; replicas ignore it too
        return 1
