"""What looks wrong with pictures, as a hint for the reviewer. A sample with defects is flagged, never left out."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageChops, ImageStat

DARK, BRIGHT = 16, 239  # of 255: video's own black and white
FLAT = 2.0  # standard deviation of grey levels below which a frame shows nothing
STILL = 2  # grey levels by which two frames of a moving picture differ at least, somewhere


def possible_defects(frames: Sequence[Image.Image], *, moving: bool) -> tuple[str, ...]:
    """
    Args:
        frames: RGB pictures of one image or video, in order, all of one size.
        moving: whether they are frames of a video.
    """
    if not frames:
        return ()
    grey = [frame.convert("L") for frame in frames]
    extremes = [ImageStat.Stat(frame).extrema[0] for frame in grey]
    found = []
    black = [high <= DARK for _, high in extremes]
    white = [low >= BRIGHT for low, _ in extremes]
    flat = [ImageStat.Stat(frame).stddev[0] < FLAT for frame in grey]
    for kinds, word in ((black, "black"), (white, "white")):
        if any(kinds):
            found.append(_count(word, sum(kinds), len(frames)))
    if all(flat) and not all(black) and not all(white):
        found.append(_count("one flat colour", len(frames), len(frames)))
    if moving and len(grey) > 1 and not any(map(_differ, grey, grey[1:])):
        found.append(f"no motion between {len(grey)} frames looked at")
    return tuple(f"possible defect: {text}" for text in found)


def _count(word: str, count: int, total: int) -> str:
    return f"the picture is {word}" if total == 1 else f"{count} of {total} frames looked at are {word}"


def _differ(one: Image.Image, other: Image.Image) -> bool:
    return ImageStat.Stat(ImageChops.difference(one, other)).extrema[0][1] > STILL
