"""The text that reaches the model: prompt and negative prompt with duration and size said in words.

As the pinned framework words it; an empty text takes a sentence without a leading dot.
"""

from __future__ import annotations

import json
from typing import Any

from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.contract.sample import NegativeMetadataMode


def prompt_text(resolved: ResolvedSample, *, size: tuple[int, int] | None = None, num_frames: int | None = None) -> str:
    """The positive prompt.

    Args:
        size: (width, height) in pixels where the media decided it; default: the resolved size.
        num_frames: real frame count where the media decided it; default: the resolved count.
    """
    if resolved.native_prompt_upsampling:
        return resolved.prompt
    size, frames = size or resolved.size, num_frames or resolved.num_frames
    structured = _json_object(resolved.prompt)
    if structured is not None:
        text = _structured(structured, resolved, size, frames)
    else:
        text = _with_metadata(
            resolved.prompt.strip(), resolved.duration_template, resolved.resolution_template, resolved, size, frames
        )
    if resolved.hints and resolved.emphasize_control_in_prompt:
        text = _emphasized(text, list(resolved.hints))  # last of all, also behind a JSON prompt, as upstream
    return text


def negative_text(
    resolved: ResolvedSample, *, size: tuple[int, int] | None = None, num_frames: int | None = None
) -> str:
    """The negative prompt; "" means that the negative branch has no text of its own. Arguments as `prompt_text`."""
    size, frames = size or resolved.size, num_frames or resolved.num_frames
    text = (resolved.negative_prompt or "").strip()
    if resolved.negative_metadata_mode is NegativeMetadataMode.SAME:
        text = _with_metadata(text, resolved.duration_template, resolved.resolution_template, resolved, size, frames)
    elif resolved.negative_metadata_mode is NegativeMetadataMode.INVERSE:
        text = _append(text, _duration(resolved.inverse_duration_template, resolved, frames))
        text = _append(text, _size(resolved.inverse_resolution_template, size))
    return text.lstrip(".").strip()


def _with_metadata(
    text: str,
    duration: str | None,
    resolution: str | None,
    resolved: ResolvedSample,
    size: tuple[int, int] | None,
    frames: int,
) -> str:
    if frames > 1 and duration:
        text = _append(text, _duration(duration, resolved, frames))
    return _append(text, _size(resolution, size))


def _append(text: str, sentence: str) -> str:
    if not sentence:
        return text
    text = text.rstrip(".")
    return f"{text}. {sentence}" if text else sentence


def _duration(template: str, resolved: ResolvedSample, frames: int) -> str:
    return template.format(duration=frames / resolved.fps, fps=resolved.fps)


def _size(template: str | None, size: tuple[int, int] | None) -> str:
    return template.format(width=size[0], height=size[1]) if template and size else ""


def _json_object(prompt: str) -> dict[str, Any] | None:
    if not prompt.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(prompt)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _structured(
    value: dict[str, Any], resolved: ResolvedSample, size: tuple[int, int] | None, frames: int
) -> str:  # fmt: skip
    if frames > 1:
        value["duration"] = f"{int(frames / resolved.fps)}s"
        value["fps"] = float(resolved.fps)
    else:
        value.pop("duration", None)
        value.pop("fps", None)
    if size:
        value["resolution"] = {"H": size[1], "W": size[0]}
    if resolved.aspect_ratio is not None:
        value["aspect_ratio"] = str(resolved.aspect_ratio)
    return json.dumps(value)


def _emphasized(text: str, hints: list[str]) -> str:
    # The model was trained with this very sentence, so it is an interface and not prose.
    names = ", ".join(hints)
    return (
        f"{text.rstrip()} Follow the {names} control video precisely: shape, contour, silhouette, position, and motion"
        f" of every visible structure must align with the {names} signal at every frame."
    )
