"""The copy of a file that replicas would get wrong: an upright, constant-rate H.264 clip with square pixels in SDR, or
a PNG. Runs in the process that reads media only.

Even clips keep their frames one for one; of uneven ones each output frame is the last one shown at its time, at the
rate of the usual interval, at most 30 per second. Where the first picture comes late, it stands from the start:
replicas stamp frames by their number.
"""

from __future__ import annotations

import errno
import statistics
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from cosmos3_serve.media.colour import describe, to_rgb
from cosmos3_serve.media.limits import ReadLimits
from cosmos3_serve.media.record import MediaRecord
from cosmos3_serve.media.refusal import COMMAND, broken, too_large
from cosmos3_serve.media.sniff import Sniffed
from cosmos3_serve.media.still import read_still
from cosmos3_serve.media.timeline import Timeline
from cosmos3_serve.media.video import VideoFacts, read_video
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.limits import MediaLimits

# Enters the rules' fingerprint: a copy made by another recipe does not count.
RECIPE = "h264-crf18-ultrafast-1"
MAX_RATE = 30
# A copy is decoded once or twice, so its size matters less than the time it takes: 300 frames of 1280x720 take 1.0 s of
# CPU instead of 3.1 with `veryfast`, decode in half the time, are 0.3 dB nearer to the original, and twice as large.
_ENCODER = {"preset": "ultrafast", "crf": "18", "bf": "0"}


def copy_image(path: Path, out: Path, sniffed: Sniffed, limits: ReadLimits, reasons: list[str]) -> MediaInfo:
    """Write the picture as PNG to `out` and say what it is. Raises as `read_still`; OSError where our disk fails."""
    from PIL import Image

    rgb, record = read_still(path, sniffed, limits)
    Image.fromarray(rgb).save(out, "PNG", compress_level=1)
    return MediaInfo(
        kind="image",
        mime="image/png",
        container="png",
        codec="png",
        pixel_format="RGB",
        width=record.width,
        height=record.height,
        frames=1,
        fps=0.0,
        duration_s=0.0,
        size=out.stat().st_size,
        normalised=tuple(reasons),
    )


def copy_video(
    path: Path, out: Path, sniffed: Sniffed, record: MediaRecord, times: Timeline, reasons: list[str],
    limits: MediaLimits,
) -> MediaInfo:  # fmt: skip
    """Write the clip to `out` and say what it is.

    Raises:
        Refused: it does not decode to the end, or the copy grows past the limits.
        OSError: our disk.
    """
    import av

    rate = _rate(record, times)
    late = max(0, round(record.start_s * float(rate))) if record.start_s else 0
    count = late + (record.frames if not record.variable_rate else max(2, round(times.times_s[-1] * float(rate)) + 1))
    if count * record.width * record.height > limits.max_normalise_pixels:
        raise too_large("media_needs_conversion", "the video is too large to convert here", COMMAND)
    size = max(2, record.width & ~1), max(2, record.height & ~1)
    try:
        with av.open(str(out), "w", format="mp4", options={"movflags": "+faststart"}) as target:
            writer = _Writer(target, rate, size, late, count if record.variable_rate else None)
            read_video(path, sniffed, limits.reading(every_frame=True), writer.take, record.track)
            written = writer.end()
    except av.FFmpegError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise OSError(error.errno, error.strerror) from None  # our disk, not the file
        raise broken("media_corrupt", f"the video cannot be copied ({error.strerror})", COMMAND) from None
    if written < limits.min_frames:
        raise broken("media_corrupt", f"only {written} frame(s) of the video decode", COMMAND)
    return MediaInfo(
        kind="video",
        mime="video/mp4",
        container="mp4",
        codec="h264",
        pixel_format="yuv420p",
        width=size[0],
        height=size[1],
        frames=written,
        fps=float(rate),
        duration_s=written / float(rate),
        size=out.stat().st_size,
        header_frames=written,
        replica_frames=written,
        normalised=tuple(reasons),
    )


def _rate(record: MediaRecord, times: Timeline) -> Fraction:
    if not record.variable_rate:
        return Fraction(record.fps).limit_denominator(1001)
    gaps = [after - before for before, after in pairwise(times.times_s) if after > before]
    usual = 1 / statistics.median(gaps) if gaps else record.fps
    return Fraction(min(max(usual, 1.0), MAX_RATE)).limit_denominator(1001)


class _Writer:
    """Encodes decoded frames.

    Args:
        late: copies of the first frame that come before it.
        count: frames in all, of an uneven clip; None keeps every frame as it comes.
    """

    def __init__(self, target: Any, rate: Fraction, size: tuple[int, int], late: int, count: int | None) -> None:
        self._target, self._rate, self._size, self._late, self._count = target, rate, size, late, count
        self._stream: Any = target.add_stream("libx264", rate=rate)
        self._stream.width, self._stream.height, self._stream.pix_fmt = *size, "yuv420p"
        self._stream.options = dict(_ENCODER)
        self._stream.codec_context.thread_count = 1  # the same bytes whatever the machine
        self._held: Any = None
        self._first: float | None = None
        self._written = 0

    def take(self, frame: Any, facts: VideoFacts) -> None:
        if facts.decoded == 1:
            for _ in range(self._late):
                self._write(self._shown(frame, facts))
        if self._count is None:
            self._write(self._shown(frame, facts))
            return
        time = float(frame.pts * frame.time_base) if frame.pts is not None else (self._first or 0.0)
        self._first = time if self._first is None else self._first
        # Half a tick of grace: a frame a little late still is this tick's.
        self._hold_until(time - self._first - 0.5 / float(self._rate))
        self._held = self._shown(frame, facts)

    def _hold_until(self, time: float) -> None:
        while self._held is not None and self._written < (self._count or 0):
            if (self._written - self._late) / float(self._rate) >= time:
                return
            self._write(self._held)

    def _shown(self, frame: Any, facts: VideoFacts) -> Any:
        import av

        colour = describe(frame)
        if not (colour.plain and facts.geometry.plain):
            frame = av.VideoFrame.from_ndarray(_contiguous(facts.geometry.upright(to_rgb(frame, colour))), "rgb24")
        return frame.reformat(width=self._size[0], height=self._size[1], format="yuv420p")

    def _write(self, shown: Any) -> None:
        shown.pts, shown.time_base = self._written, 1 / self._rate
        self._written += 1
        for packet in self._stream.encode(shown):
            self._target.mux(packet)

    def end(self) -> int:
        """Frames written."""
        if self._count is not None:
            self._hold_until(float("inf"))
        for packet in self._stream.encode(None):
            self._target.mux(packet)
        return self._written


def _contiguous(rgb: Any) -> Any:
    import numpy as np

    return np.ascontiguousarray(rgb)
