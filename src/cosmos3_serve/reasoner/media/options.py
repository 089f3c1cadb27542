"""Processing options: what changes the tokens made of the same bytes, and what a client may not choose.

A list of what is allowed, since replicas hand everything else on to decoders and processors: a client who sets a patch
size, a decoder or a pixel budget of terabytes picks what dies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from cosmos3_serve.media.refusal import bad
from cosmos3_serve.media.sniff import Kind

MAX_PIXELS = 25_165_824  # the model's own budget for a whole video
Check = tuple[Callable[[Any], bool], str]


def _whole(least: int, most: int) -> Check:
    return (
        lambda v: isinstance(v, int) and not isinstance(v, bool) and least <= v <= most,
        f"a whole number from {least} to {most}",
    )


def _rate(most: int) -> Check:
    return (
        lambda v: isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) and 0 < v <= most,
        f"a number above 0 and at most {most}",
    )


_FRAMES, _PIXELS = _whole(1, 768), _whole(1, MAX_PIXELS)
_FLAG: Check = (lambda v: isinstance(v, bool), "true or false")
_COLOUR: Check = (
    lambda v: isinstance(v, list) and len(v) == 3 and all(isinstance(c, int) and 0 <= c <= 255 for c in v),
    "three whole numbers from 0 to 255",
)
_IO: Mapping[Kind, Mapping[str, Check]] = {
    "video": {
        "fps": _rate(30),
        "num_frames": (lambda v: v == -1 or _FRAMES[0](v), "-1 or a whole number from 1 to 768"),
        "min_frames": _FRAMES,
        "max_frames": _FRAMES,
    },
    "image": {"rgba_background_color": _COLOUR},
}
_PROCESSOR: Mapping[str, Check] = {
    "fps": _rate(60),
    "num_frames": _FRAMES,
    "min_pixels": _PIXELS,
    "max_pixels": _PIXELS,
    "cap_pixels_per_frame": _FLAG,
    "max_video_tokens": _whole(1, 16_384),
}
_EDGES: Mapping[str, Check] = {"shortest_edge": _PIXELS, "longest_edge": _PIXELS}
_NESTED = ("videos_kwargs", "images_kwargs")


def processing_options(body: Mapping[str, Any]) -> dict[Kind, dict[str, Any]]:
    """Per kind: `mm_processor_kwargs` and that kind's `media_io_kwargs`, where given.

    Raises:
        Refused: 400 `media_option_invalid`: no object, a key that a client may not set, or a value out of range.
    """
    processor = _object(body, "mm_processor_kwargs")
    _check_processor(processor, "mm_processor_kwargs")
    given = _object(body, "media_io_kwargs")
    for modality in given:
        if modality not in _IO:
            raise bad("media_option_invalid", f"media_io_kwargs has no {modality[:40]!a}", "use video or image")
    options: dict[Kind, dict[str, Any]] = {}
    for kind, allowed in _IO.items():
        loading = _object(given, kind)
        for key, value in loading.items():
            _check(key, value, allowed, f"media_io_kwargs.{kind}")
        found = {"mm_processor_kwargs": dict(processor), "media_io_kwargs": dict(loading)}
        options[kind] = {name: value for name, value in found.items() if value}
    return options


def _check_processor(kwargs: Mapping[str, Any], where: str) -> None:
    for key, value in kwargs.items():
        if key == "size":
            for edge, pixels in _object(kwargs, "size").items():
                _check(edge, pixels, _EDGES, f"{where}.size")
        elif key in _NESTED and where == "mm_processor_kwargs":
            _check_processor(_object(kwargs, key), f"{where}.{key}")
        else:
            _check(key, value, _PROCESSOR, where)


def _check(key: str, value: Any, allowed: Mapping[str, Check], where: str) -> None:
    if key not in allowed:
        raise bad(
            "media_option_invalid", f"{where}.{key[:40]} is not for clients to set", f"use {', '.join(sorted(allowed))}"
        )
    fits, wanted = allowed[key]
    if not fits(value):
        raise bad("media_option_invalid", f"{where}.{key} is not {wanted}", f"send {wanted}")


def _object(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = holder.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise bad("media_option_invalid", f"{key} is not an object")
    return value
