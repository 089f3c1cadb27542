"""Which frames a replica really uses of a video, and what they cost: for `explain`, and to refuse what would kill it.

Follows vLLM's loader for this model family (frames picked by index, evenly spread) and the model's own processor (size
by a pixel budget over all frames, two frames and 2x2 patches to a token). Checked against both, see the tests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cosmos3_serve.reasoner.media.info import MediaInfo

# vLLM's loader for this model family.
LOADER_FPS = 2.0
LOADER_MAX_FPS = 30.0
LOADER_MIN_FRAMES = 4
LOADER_MAX_FRAMES = 768


@dataclass(frozen=True, slots=True)
class VideoProcessor:
    """A model's `video_preprocessor_config.json`, as far as it decides about frames and tokens.

    Args:
        shortest_edge, longest_edge: least and most pixels over all frames of a video.
        cap_pixels_per_frame: whether one frame may cost at most `max_video_tokens`.
    """

    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768
    patch_size: int = 16
    temporal_patch_size: int = 2
    merge_size: int = 2
    shortest_edge: int = 4096
    longest_edge: int = 25_165_824
    cap_pixels_per_frame: bool = False
    max_video_tokens: int = 768

    @classmethod
    def load(cls, checkpoint: Path) -> VideoProcessor:
        """Read a checkpoint's config. Blocking. Raises OSError or ValueError where there is none, or no JSON."""
        value = json.loads((checkpoint / "video_preprocessor_config.json").read_bytes())
        size = value.get("size") or {}
        names = ("fps", "min_frames", "max_frames", "patch_size", "temporal_patch_size", "merge_size")
        known = {k: value[k] for k in (*names, "cap_pixels_per_frame", "max_video_tokens") if value.get(k) is not None}
        edges = {k: size[k] for k in ("shortest_edge", "longest_edge") if k in size}
        return cls(**known, **edges)


@dataclass(frozen=True, slots=True)
class Sampling:
    """
    Args:
        indices: of the frames used, counted over the clip.
        timestamps_s: of each pair of frames, as the prompt tells the model.
        sampled_fps: frames used per second of clip.
        width, height: after resizing.
        tokens: the video's own; its timestamps' words come on top.
        patch_bytes: that a replica's processor cache needs for it (32-bit floats).
        decoded_bytes: RGB bytes that the loader holds before resizing.
    """

    indices: tuple[int, ...]
    timestamps_s: tuple[float, ...]
    sampled_fps: float
    width: int
    height: int
    tokens: int
    patch_bytes: int
    decoded_bytes: int

    def as_dict(self) -> dict[str, Any]:
        shown = asdict(self)
        del shown["patch_bytes"], shown["decoded_bytes"]
        return {**shown, "indices": list(self.indices), "timestamps_s": [round(t, 3) for t in self.timestamps_s]}


def sample_video(info: MediaInfo, processor: VideoProcessor, options: Mapping[str, Any]) -> Sampling:
    """
    Args:
        info: of the content that the replica gets.
        options: the request's, as in `MediaPart.options`.

    Raises:
        ValueError: a size that the processor refuses (a strip; no pixels).
    """
    picked = frame_indices(info.replica_frames, info.fps, processor, options)
    # Where an edit list hides one frame, the loader counts one too many and goes without it.
    indices = [index for index in picked if index < info.frames]
    count = len(indices)
    height, width = resized(count, info.height, info.width, processor, options)
    step = processor.temporal_patch_size
    padded = [*indices, *[indices[-1]] * (-count % step)]
    times = [index / info.fps for index in padded]
    stamps = tuple((times[i] + times[i + step - 1]) / 2 for i in range(0, len(times), step))
    patches = len(padded) // step * (height // processor.patch_size) * (width // processor.patch_size)
    return Sampling(
        indices=tuple(indices),
        timestamps_s=stamps,
        sampled_fps=count / info.duration_s,
        width=width,
        height=height,
        tokens=patches // processor.merge_size**2,
        patch_bytes=patches * 3 * step * processor.patch_size**2 * 4,
        decoded_bytes=loaded_frames(info.replica_frames, info.fps, options) * info.width * info.height * 3,
    )


def frame_indices(total: int, fps: float, processor: VideoProcessor, options: Mapping[str, Any]) -> list[int]:
    """Indices that the loader picks, then those that the processor keeps of them.

    The loader reads `media_io_kwargs.video`; its `fps` is 2 unless set there. Where it has picked every frame, the
    processor picks once more by its own numbers, unless `do_sample_frames` is false.
    """
    count = loaded_frames(total, fps, options)
    indices = spread(total, count)
    if count != total:
        return indices
    if _video_kwargs(options).get("do_sample_frames") is False:
        return indices
    count = max(int(total / fps * processor.fps), processor.min_frames)
    return spread(total, max(1, min(count, processor.max_frames, total)))


def loaded_frames(total: int, fps: float, options: Mapping[str, Any]) -> int:
    """Frames that the loader decodes and holds at once."""
    loading = options.get("media_io_kwargs", {})
    wanted = min(float(loading.get("fps", LOADER_FPS)), LOADER_MAX_FPS)
    most = min(int(loading.get("max_frames", LOADER_MAX_FRAMES)), LOADER_MAX_FRAMES)
    return min(max(int(total / fps * wanted), int(loading.get("min_frames", LOADER_MIN_FRAMES))), most, total)


def spread(total: int, count: int) -> list[int]:
    """`count` indices over `total` frames, ends included, rounded half to even (as numpy does)."""
    if count == 1:
        return [0]
    step = (total - 1) / (count - 1)
    return [round(i * step) for i in range(count - 1)] + [total - 1]


def resized(
    frames: int, height: int, width: int, processor: VideoProcessor, options: Mapping[str, Any]
) -> tuple[int, int]:
    """Height and width after resizing: multiples of a token's side, within the pixel budget of the whole video.

    Raises:
        ValueError: as `sample_video`.
    """
    kwargs = _video_kwargs(options)
    least, most = _budget(kwargs, processor)
    factor = processor.patch_size * processor.merge_size
    if kwargs.get("cap_pixels_per_frame", processor.cap_pixels_per_frame):
        cap = processor.max_video_tokens * factor * factor  # the processor heeds no other of a request
        most = max(min(cap, most // frames), int(least * 1.05)) * frames
    if height < 1 or width < 1:
        raise ValueError("no pixels")
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    if max(height, width) > 200 * min(height, width):
        raise ValueError("one side is more than 200 times the other")
    step = processor.temporal_patch_size
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    volume = round(frames / step) * step * tall * wide
    if volume > most:
        shrink = math.sqrt(frames * height * width / most)
        tall = max(factor, math.floor(height / shrink / factor) * factor)
        wide = max(factor, math.floor(width / shrink / factor) * factor)
    elif volume < least:
        grow = math.sqrt(least / (frames * height * width))
        tall, wide = math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return tall, wide


def _budget(kwargs: Mapping[str, Any], processor: VideoProcessor) -> tuple[int, int]:
    size = kwargs.get("size") if isinstance(kwargs.get("size"), Mapping) else {}
    least = kwargs.get("min_pixels", (size or {}).get("shortest_edge", processor.shortest_edge))
    most = kwargs.get("max_pixels", (size or {}).get("longest_edge", processor.longest_edge))
    return int(least), int(most)


def _video_kwargs(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """`mm_processor_kwargs` as they reach the video processor: flat, or under `videos_kwargs`."""
    kwargs = options.get("mm_processor_kwargs", {})
    nested = kwargs.get("videos_kwargs")
    return {**kwargs, **nested} if isinstance(nested, Mapping) else kwargs
