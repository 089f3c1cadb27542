"""One upright, constant-rate H.264 copy of a clip that replicas would get wrong. Runs in the probe's process only."""

from __future__ import annotations

import errno
import statistics
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from cosmos3_serve.media.refusal import COMMAND, broken, too_large
from cosmos3_serve.reasoner.media.examine import TURNS, VideoFacts, open_video, video_stream
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.limits import MediaLimits

# Enters the rules' fingerprint: a copy made by another recipe does not count.
RECIPE = "h264-crf18-veryfast-1"
MAX_RATE = 30
_MP4 = {"movflags": "+faststart"}
_PILLOW_TURNS = {
    (90, False): "ROTATE_90",
    (180, False): "ROTATE_180",
    (270, False): "ROTATE_270",
    (0, True): "FLIP_LEFT_RIGHT",
    (180, True): "FLIP_TOP_BOTTOM",
    (90, True): "TRANSPOSE",
    (270, True): "TRANSVERSE",
}


def normalise(
    path: Path, out: Path, facts: VideoFacts, info: MediaInfo, reasons: list[str], limits: MediaLimits
) -> MediaInfo:
    """Write the copy to `out` and say what it is.

    Even clips keep their frames one for one; of uneven ones each output frame is the last one shown at its time, at the
    rate of the usual interval, at most 30 per second.

    Raises:
        Refused: it does not decode to the end, or the copy grows past the limits.
    """
    import av

    rate = _rate(facts, info)
    count = facts.frames if not info.variable_rate else max(2, round(facts.times_s[-1] * float(rate)) + 1)
    if count * info.width * info.height > limits.max_normalise_pixels:
        raise too_large("media_needs_conversion", "the video is too large to convert here", COMMAND)
    width, height = max(2, info.width & ~1), max(2, info.height & ~1)
    written = 0
    try:
        with (
            open_video(path) as source,
            av.open(str(out), "w", format="mp4", options={"movflags": "+faststart"}) as target,
        ):
            stream: Any = target.add_stream("libx264", rate=rate)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            stream.options = {"preset": "veryfast", "crf": "18", "bf": "0"}
            stream.codec_context.thread_count = 1  # the same bytes whatever the machine
            for frame in _steady(_upright(source, facts), facts, info, rate, count):
                shown = frame.reformat(width=width, height=height, format="yuv420p")
                shown.pts, shown.time_base = written, 1 / rate
                written += 1
                for packet in stream.encode(shown):
                    target.mux(packet)
            for packet in stream.encode(None):
                target.mux(packet)
    except av.FFmpegError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise OSError(error.errno, error.strerror) from None  # our disk, not the file
        raise broken("media_corrupt", f"the video breaks after {written} frames ({error.strerror})", COMMAND) from None
    if written < limits.min_frames:
        raise broken("media_corrupt", f"only {written} frame(s) of the video decode", COMMAND)
    return MediaInfo(
        kind="video",
        mime="video/mp4",
        container="mp4",
        codec="h264",
        pixel_format="yuv420p",
        width=width,
        height=height,
        frames=written,
        fps=float(rate),
        duration_s=written / float(rate),
        size=out.stat().st_size,
        header_frames=written,
        replica_frames=written,
        normalised=tuple(reasons),
    )


def _rate(facts: VideoFacts, info: MediaInfo) -> Fraction:
    if not info.variable_rate:
        return Fraction(info.fps).limit_denominator(1001)
    gaps = [after - before for before, after in pairwise(facts.times_s) if after > before]
    usual = 1 / statistics.median(gaps) if gaps else info.fps
    return Fraction(min(max(usual, 1.0), MAX_RATE)).limit_denominator(1001)


def _upright(source: Any, facts: VideoFacts) -> Iterator[Any]:
    import av
    from PIL import Image

    stream = video_stream(source)
    stream.codec_context.thread_count = 1
    turn = _PILLOW_TURNS.get(TURNS[facts.matrix or (1, 0, 0, 1)])
    for frame in source.decode(stream):
        if turn is None:
            yield frame
            continue
        turned = av.VideoFrame.from_image(frame.to_image().transpose(getattr(Image.Transpose, turn)))
        turned.pts, turned.time_base = frame.pts, frame.time_base
        yield turned


def _steady(frames: Iterator[Any], facts: VideoFacts, info: MediaInfo, rate: Fraction, count: int) -> Iterator[Any]:
    """Even clips as they are; of uneven ones the last frame shown at each tick."""
    if not info.variable_rate:
        yield from frames
        return
    first: float | None = None
    held: Any = None
    tick = 0
    for frame in frames:
        time = float(frame.pts * frame.time_base) if frame.pts is not None else facts.times_s[-1]
        first = time if first is None else first
        # Half a tick of grace: a frame a little late still is this tick's.
        while held is not None and tick < count and tick / float(rate) < time - first - 0.5 / float(rate):
            yield held
            tick += 1
        held = frame
    while held is not None and tick < count:
        yield held
        tick += 1
