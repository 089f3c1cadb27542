"""Facts about a video or an image, read from the file itself. Runs in the probe's process only: files are hostile.

How frames are counted: every packet of the file is demuxed (no decoding), and what an edit list hides is left out. One
packet is one frame in the containers and codecs that are taken. Then frames are decoded: all of them up to a bound of
pixels, beyond it the first two and those from the last keyframe on. Damage in the middle of a long clip is therefore
not found here; a replica skips such frames.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cosmos3_serve.media.jpeg import jpeg_sizes
from cosmos3_serve.media.refusal import COMMAND, Refused, broken, too_large, unsupported
from cosmos3_serve.media.sniff import Sniffed
from cosmos3_serve.reasoner.media.limits import MediaLimits

# FFmpeg would also open playlists, which name further files and addresses. These name none.
_OPEN = {"format_whitelist": "mov,mp4,matroska,webm,avi,mpegts,gif", "protocol_whitelist": "file"}
MAX_PACKETS = 2_000_000
# (a, b, c, d) of a display matrix -> (degrees counter-clockwise, mirrored first)
TURNS = {
    (1, 0, 0, 1): (0, False),
    (0, -1, 1, 0): (90, False),
    (-1, 0, 0, -1): (180, False),
    (0, 1, -1, 0): (270, False),
    (-1, 0, 0, 1): (0, True),
    (0, 1, 1, 0): (90, True),
    (1, 0, 0, -1): (180, True),
    (0, -1, -1, 0): (270, True),
}
TRUNCATED = "the file is cut off: send all of it"


@dataclass(slots=True)
class VideoFacts:
    """
    Args:
        width, height: as stored.
        matrix: (a, b, c, d) of the display matrix, None where it is no quarter turn.
        times_s: when each shown frame is shown, sorted, from 0.
        stored: frames in the file, hidden ones included.
        header_frames, header_rate, header_duration_s: as declared; None where not.
        last_end_s: when the last packet of any stream ends.
        decoded: frames that decoded, of `tried`.
    """

    container: str
    codec: str
    pixel_format: str
    width: int
    height: int
    size: int
    matrix: tuple[int, int, int, int] | None = (1, 0, 0, 1)
    times_s: list[float] = field(default_factory=list)
    stored: int = 0
    header_frames: int | None = None
    header_rate: float | None = None
    header_duration_s: float | None = None
    last_end_s: float = 0.0
    corrupt: bool = False
    has_audio: bool = False
    decoded: int = 0
    tried: int = 0

    @property
    def frames(self) -> int:
        return len(self.times_s)


def open_video(path: Path, **options: str) -> Any:
    """
    Raises:
        Refused: FFmpeg cannot open it as one of the containers that are taken.
    """
    import av

    try:
        return av.open(str(path), options={**_OPEN, **options}, metadata_errors="replace")
    except (av.FFmpegError, ValueError) as error:
        raise broken(
            "media_truncated",
            f"the file cannot be opened as a video ({_words(error)}): cut off, or damaged at its start or end",
            f"send the whole file, or rewrite it: {COMMAND}",
        ) from None


def examine_video(path: Path, sniffed: Sniffed, limits: MediaLimits) -> VideoFacts:
    """
    Raises:
        Refused: no video in it, too many pixels or frames, or nothing that decodes.
    """
    with open_video(path) as container:
        stream = video_stream(container)
        codec = stream.codec_context
        if codec is None:
            raise unsupported("media_codec_unsupported", "the video's codec is unknown", COMMAND)
        facts = VideoFacts(
            container=sniffed.name,
            codec=_codec_name(codec),
            pixel_format=str(codec.pix_fmt or ""),
            width=codec.width,
            height=codec.height,
            size=path.stat().st_size,
            header_frames=stream.frames or None,
            header_rate=float(stream.average_rate or stream.guessed_rate or 0) or None,
            header_duration_s=container.duration / 1_000_000 if container.duration else None,
            has_audio=bool(container.streams.audio),
        )
        check_pixels(facts.width, facts.height, limits.max_frame_pixels, "frame")
        _count(container, stream, facts, limits)
    if facts.header_frames not in (None, facts.stored):
        facts.stored = _stored(path)  # without the edit list: what the header counts
    _decode(path, facts, limits)
    return facts


def video_stream(container: Any) -> Any:
    # A cover picture is a video stream to FFmpeg.
    streams = [s for s in container.streams.video if not _is_cover(s)]
    if streams:
        return streams[0]
    if not len(container.streams):
        raise broken("media_truncated", "the file's index holds no stream: it is cut off or damaged", TRUNCATED)
    what = "only sound" if container.streams.audio else "no video stream (is it complete?)"
    raise broken("media_no_video", f"the file holds {what}", "send a file with a video stream")


def _is_cover(stream: Any) -> bool:
    from av.stream import Disposition

    return bool(stream.disposition & Disposition.attached_pic)


def _codec_name(codec: Any) -> str:
    return {"libdav1d": "av1", "libvpx-vp9": "vp9", "libvpx": "vp8"}.get(codec.name, str(codec.name))


def check_pixels(width: int, height: int, limit: int, what: str) -> None:
    """Refuse by the header's word, before anything is decoded."""
    if width < 1 or height < 1:
        raise broken("media_no_pixels", f"the file declares a {what} size that no decoder takes", COMMAND)
    if width * height > limit:
        raise too_large(
            "media_too_many_pixels",
            f"a {what} of {width}x{height} pixels is more than {limit} pixels",
            "ffmpeg -i INPUT -vf scale=1280:-2 OUTPUT",
        )


def _count(container: Any, stream: Any, facts: VideoFacts, limits: MediaLimits) -> None:
    import av

    times: list[float] = []
    packets = 0
    try:
        for packet in container.demux():
            packets += 1
            if packets > MAX_PACKETS:
                raise too_large("media_too_long", f"the file holds more than {MAX_PACKETS} packets", "cut it")
            stamp = packet.pts if packet.pts is not None else packet.dts
            if packet.size == 0 or stamp is None:
                continue
            start = float(stamp * packet.time_base)
            facts.last_end_s = max(facts.last_end_s, start + float((packet.duration or 0) * packet.time_base))
            if packet.stream is not stream and packet.stream_index != stream.index:
                continue
            facts.stored += 1
            facts.corrupt |= packet.is_corrupt
            if facts.codec == "mjpeg":  # each frame has a size of its own, and not all may be decoded below
                for width, height in jpeg_sizes(bytes(packet)):
                    check_pixels(width, height, limits.max_frame_pixels, "frame")
            if not packet.is_discard:
                times.append(start)
            if len(times) > limits.max_frames:
                raise too_large(
                    "media_too_long",
                    f"the video has more than {limits.max_frames} frames",
                    "ffmpeg -i INPUT -r 10 OUTPUT",
                )
    except av.FFmpegError:
        facts.corrupt = True
    times.sort()
    facts.times_s = [time - times[0] for time in times]


def _stored(path: Path) -> int:
    with open_video(path, ignore_editlist="1") as container:
        stream = video_stream(container)
        return sum(1 for packet in container.demux(stream) if packet.size)


def _decode(path: Path, facts: VideoFacts, limits: MediaLimits) -> None:
    import av

    everything = facts.frames * facts.width * facts.height <= limits.full_decode_pixels
    with open_video(path) as container:
        stream = video_stream(container)
        stream.codec_context.thread_count = 1
        try:
            for frame in container.decode(stream):
                check_pixels(frame.width, frame.height, limits.max_frame_pixels, "frame")
                if facts.decoded == 0:
                    facts.matrix = _matrix(frame)
                    facts.pixel_format = frame.format.name
                    facts.width, facts.height = frame.width, frame.height
                facts.decoded += 1
                if not everything and facts.decoded == 2:
                    break
        except (av.FFmpegError, ValueError) as error:
            if facts.decoded == 0:
                raise _undecodable(facts, error) from None
        facts.tried = facts.frames if everything else 2
        if facts.decoded == 0:
            raise _undecodable(facts, None)
        if not everything:
            facts.tried += 1
            facts.decoded += _last_decodes(container, stream, facts)


def _last_decodes(container: Any, stream: Any, facts: VideoFacts) -> int:
    import av

    try:
        container.seek(int(facts.times_s[-1] / stream.time_base), stream=stream)
        last = None
        for frame in container.decode(stream):
            last = frame
        return int(last is not None)
    except (av.FFmpegError, ValueError):
        return 0


def _undecodable(facts: VideoFacts, error: Exception | None) -> Refused:
    if facts.corrupt or not facts.stored:
        return broken("media_truncated", "no frame of the video is there: the file is cut off", TRUNCATED)
    reason = f" ({_words(error)})" if error else ""
    return broken("media_corrupt", f"no frame of the {facts.codec} video decodes{reason}", COMMAND)


def _matrix(frame: Any) -> tuple[int, int, int, int] | None:
    data = frame.side_data.get("DISPLAYMATRIX")
    if data is None:
        return (1, 0, 0, 1)
    a, b, _, c, d, *_ = struct.unpack("<9i", bytes(data))
    scale = max(map(abs, (a, b, c, d))) or 1
    unit = tuple(round(v / scale) if abs(abs(v) / scale - round(abs(v) / scale)) < 0.01 else 9 for v in (a, b, c, d))
    return unit if unit in TURNS else None


def _words(error: Exception) -> str:
    return str(getattr(error, "strerror", "") or type(error).__name__)[:80]
