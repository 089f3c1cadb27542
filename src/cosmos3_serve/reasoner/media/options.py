"""Processing options: what changes the tokens made of the same bytes, and what a client may not choose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cosmos3_serve.reasoner.media.parts import Kind
from cosmos3_serve.reasoner.media.refusal import bad

# Sampling only. Decoders, devices and pool sizes are the operator's: a client who picks them picks what fails.
_IO_KEYS: Mapping[Kind, frozenset[str]] = {
    "video": frozenset({"fps", "num_frames", "min_frames", "max_frames"}),
    "image": frozenset({"rgba_background_color"}),
}


def processing_options(body: Mapping[str, Any]) -> dict[Kind, dict[str, Any]]:
    """Per kind: `mm_processor_kwargs` and that kind's `media_io_kwargs`, where given.

    Raises:
        Refused: not objects, a key that a client may not set, or a number out of range.
    """
    processor = _object(body, "mm_processor_kwargs")
    given = _object(body, "media_io_kwargs")
    options: dict[Kind, dict[str, Any]] = {}
    for modality in given:
        if modality not in _IO_KEYS:
            raise bad(
                "media_option_invalid", f"media_io_kwargs has no modality {modality[:40]!a}", "use video or image"
            )
    for kind, allowed in _IO_KEYS.items():
        loading = _object(given, kind)
        for key, value in loading.items():
            if key not in allowed:
                raise bad(
                    "media_option_invalid",
                    f"media_io_kwargs.{kind}.{key[:40]} is not for clients to set",
                    f"use {', '.join(sorted(allowed))}",
                )
            if kind == "video":
                _check_number(key, value)
        found = {"mm_processor_kwargs": dict(processor), "media_io_kwargs": dict(loading)}
        options[kind] = {name: value for name, value in found.items() if value}
    return options


def _object(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = holder.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise bad("media_option_invalid", f"{key} is not an object")
    return value


def _check_number(key: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if key == "fps":
        if not number or not 0 < value <= 30:
            raise bad("media_option_invalid", "media_io_kwargs.video.fps is not above 0 and at most 30")
    elif not number or value != int(value) or not (1 <= value <= 768 or (key == "num_frames" and value == -1)):
        raise bad("media_option_invalid", f"media_io_kwargs.video.{key} is not a whole number from 1 to 768")
