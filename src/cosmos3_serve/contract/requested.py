"""What a request promises its client: the facts that a response is bound to (source: wire baseline 5.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cosmos3_serve.contract.modes import ACTION_MODES, HINTS, ModelMode, implicit_mode, is_image_category, suffix_of
from cosmos3_serve.contract.sizes import size_of


@dataclass(frozen=True, slots=True)
class Requested:
    """One requested sample.

    Attributes:
        mode: given or implied.
        seed: None when the server draws it.
        hints: active transfer hints.
        is_image: whether one frame is asked for.
    """

    name: str
    mode: str
    seed: object
    hints: frozenset[str]
    is_image: bool

    @property
    def is_text(self) -> bool:
        return self.mode == ModelMode.REASONER and not self.hints


def active_hints(args: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(hint for hint in HINTS if args.get(hint) is not None)


def requested(sample: Mapping[str, Any]) -> Requested:
    """The promise of one prepared sample.

    Raises:
        ValueError: the mode cannot be inferred from `vision_path`.
    """
    frames = sample.get("num_frames")
    mode = sample.get("model_mode")
    if mode is None:
        vision = sample.get("vision_path")
        mode = implicit_mode(None if vision is None else suffix_of(vision), frames)
    hints = active_hints(sample)
    return Requested(sample["name"], mode, sample.get("seed"), hints, is_image_category(frames, hints, mode))


def expected_frames(args: Mapping[str, Any]) -> int | None:
    """Frames that the primary media of a result must show, from its resolved `args`; None where the input media
    decide (transfer clips)."""
    frames = args.get("num_frames")
    if not isinstance(frames, int) or (active_hints(args) and frames != 1):
        return None
    chunk = args.get("action_chunk_size")
    if args.get("model_mode") in ACTION_MODES:
        return chunk + 1 if isinstance(chunk, int) else None
    return frames


def expected_size(args: Mapping[str, Any]) -> tuple[int, int] | None:
    """(width, height) in pixels of the primary media; None where the input media decide (action, no given size)."""
    if args.get("model_mode") in ACTION_MODES:
        return None
    resolution, aspect = args.get("resolution"), args.get("aspect_ratio")
    if not isinstance(resolution, str) or not isinstance(aspect, str):
        return None
    return size_of(resolution, aspect)
