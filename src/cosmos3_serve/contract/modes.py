"""Generation modes: their names, how one is inferred, and which media each reads and makes.

The modes are those of the pinned framework; how one is inferred is in docs/contract.md 4.1.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Final
from urllib.parse import unquote


class ModelMode(StrEnum):
    """Every mode that the pinned framework knows."""

    TEXT2IMAGE = "text2image"
    TEXT2VIDEO = "text2video"
    IMAGE2IMAGE = "image2image"
    IMAGE2VIDEO = "image2video"
    VIDEO2VIDEO = "video2video"
    AUDIO_IMAGE2VIDEO = "audio_image2video"
    FORWARD_DYNAMICS = "forward_dynamics"
    INVERSE_DYNAMICS = "inverse_dynamics"
    WAM = "wam"
    REASONER = "reasoner"


IMAGE_MODES: Final = frozenset({ModelMode.TEXT2IMAGE, ModelMode.IMAGE2IMAGE})
ACTION_MODES: Final = frozenset({ModelMode.FORWARD_DYNAMICS, ModelMode.INVERSE_DYNAMICS, ModelMode.WAM})

HINTS: Final = ("edge", "blur", "depth", "seg", "wsm")
# Hints that can be computed from `vision_path`; the others need their own `control_path`.
COMPUTED_HINTS: Final = frozenset({"edge", "blur"})

IMAGE_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".webp"})
VIDEO_SUFFIXES: Final = frozenset({".mp4"})
# What the transfer reader opens; note that it does not read .webp.
CONTROL_IMAGE_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg"})
CONTROL_VIDEO_SUFFIXES: Final = frozenset({".mp4", ".avi", ".mov", ".mkv", ".webm"})

# Action width per domain of the pinned framework. `libero`, `hand_pose` and `no_action` have ids but no width there.
ACTION_DOMAINS: Final[dict[str, int]] = {
    "av": 9,
    "camera_pose": 9,
    "pusht": 2,
    "umi": 10,
    "bridge_orig_lerobot": 10,
    "droid_lerobot": 10,
    "robomind-franka": 10,
    "robomind-franka-dual": 20,
    "robomind-ur": 10,
    "embodiment_b": 30,
    "agibotworld": 29,
    "embodiment_c_gripper": 29,
    "embodiment_c_gripper_ext": 29,
    "xdof_yam": 20,
    "molmoact2_yam": 20,
    "abc_yam": 20,
    "fractal": 10,
    "drawanything": 3,
}


def suffix_of(uri: str) -> str:
    """Lower-cased extension of the last path part, with its dot; "" when there is none.

    For an `s3://` URI it is that of the percent-decoded key (docs/contract.md 4.1), so `s3://b/a%2Epng` is a picture. A
    name that only begins with a dot has no extension, as in `pathlib`.
    """
    path = unquote(uri.strip()) if uri.startswith("s3://") else uri
    stem, dot, extension = path.rstrip("/").rsplit("/", 1)[-1].rpartition(".")
    return f".{extension.lower()}" if dot and stem and extension else ""


def vision_kind(suffix: str) -> str | None:
    """`image`, `video` or None for the extension of a `vision_path`."""
    if suffix in IMAGE_SUFFIXES:
        return "image"
    return "video" if suffix in VIDEO_SUFFIXES else None


def control_kind(suffix: str) -> str | None:
    """`image`, `video` or None for the extension of a hint's `control_path`."""
    if suffix in CONTROL_IMAGE_SUFFIXES:
        return "image"
    return "video" if suffix in CONTROL_VIDEO_SUFFIXES else None


def implicit_mode(vision_suffix: str | None, num_frames: int | None) -> str:
    """The mode of a sample that names none: source (text, image, video) + "2" + target (image iff one frame).

    May give `video2image`, which no engine has; callers refuse it.

    Args:
        vision_suffix: extension of `vision_path`, None when there is no `vision_path`.
        num_frames: as requested, None when not given.

    Raises:
        ValueError: the extension is none of the known ones.
    """
    source: str | None = "text" if vision_suffix is None else vision_kind(vision_suffix)
    if source is None:
        raise ValueError(f"unknown media extension {vision_suffix!r}")
    return f"{source}2{'image' if num_frames == 1 else 'video'}"


def is_image_category(num_frames: int | None, hints: Collection[str], mode: str) -> bool:
    """Whether the requested result is an image (docs/contract.md 4.1).

    Given frames decide; else exactly the hint `wsm` means video (its default is 101 frames); else the mode's default.
    """
    if num_frames is not None:
        return num_frames == 1
    if set(hints) == {"wsm"}:
        return False
    return mode in (ModelMode.TEXT2IMAGE, ModelMode.IMAGE2IMAGE, ModelMode.REASONER)
