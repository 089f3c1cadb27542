"""One pass over a clip: what it is, whether all of it is there, and its frames on the way.

Every packet is demuxed. Frames are decoded by one thread with error detection on: frame threads and error concealment
hand out damaged pictures without a word. Flags of packets are hints; decoding decides. Where a clip is longer than
`ReadLimits.full_decode_pixels`, its first frames and those from the last keyframe on are decoded.

Runs in the process that reads media: files are hostile.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from cosmos3_serve.media.container import check_whole, missing, open_video, words
from cosmos3_serve.media.geometry import Geometry, of_frame
from cosmos3_serve.media.jpeg import jpeg_sizes
from cosmos3_serve.media.limits import ReadLimits
from cosmos3_serve.media.refusal import COMMAND, Refused, broken, too_large, unsupported
from cosmos3_serve.media.sniff import Sniffed
from cosmos3_serve.media.timeline import Timeline, timeline
from cosmos3_serve.media.tracks import Track, choose_track

FEWER_FRAMES = "ffmpeg -i INPUT -r 10 OUTPUT.mp4"
SMALLER = "ffmpeg -i INPUT -vf scale=1280:-2 OUTPUT.mp4"
SAME_SIZE = "ffmpeg -i INPUT -vf scale=1280:720,setsar=1 -c:v libx264 -pix_fmt yuv420p OUTPUT.mp4"
RECOUNT = (
    "ffmpeg -i INPUT -map 0:v:0 -c copy OUTPUT.mkv && ffmpeg -i OUTPUT.mkv -c copy -movflags +faststart OUTPUT.mp4"
)
_STRICT = {"err_detect": "explode"}
_HEAD_FRAMES = 2
_HARMLESS = "mmco: unref short failure"  # of H.264 that was cut and joined: a picture is let go twice
Sink = Callable[[Any, "VideoFacts"], None]


@dataclass(slots=True)
class VideoFacts:
    """
    Args:
        width, height: as stored.
        stored: packets of the track, hidden ones included.
        packet_times_s: presentation times of the packets that are shown, in the order of the file.
        frame_times_s: of the decoded frames; shorter where not everything is decoded.
        header_frames, header_rate, header_duration_s: as declared; None where not.
        origin_s: when the earliest stream begins; `last_end_s`: when the last packet of any stream ends.
        flagged: packets that the container marks as damaged.
        decoded: frames that decoded; `whole`: all of the clip was.
        others: packets of the other video streams, by index.
    """

    container: str
    codec: str
    size: int
    track: Track
    pixel_format: str = ""
    width: int = 0
    height: int = 0
    geometry: Geometry = field(default_factory=Geometry)
    stored: int = 0
    packet_times_s: list[float] = field(default_factory=list)
    frame_times_s: list[float] = field(default_factory=list)
    header_frames: int | None = None
    header_rate: float | None = None
    header_duration_s: float | None = None
    origin_s: float = 0.0
    last_end_s: float = 0.0
    flagged: int = 0
    decoded: int = 0
    whole: bool = True
    has_audio: bool = False
    interlaced: bool = False
    first: Any = None
    others: dict[int, int] = field(default_factory=dict)

    @property
    def frames(self) -> int:
        return self.decoded if self.whole else len(self.packet_times_s)

    def timeline(self) -> Timeline:
        """Frame times where all frames have one; else those of the packets, which some containers time alone."""
        times = self.packet_times_s
        if self.whole and len(self.frame_times_s) == self.decoded:
            times = self.frame_times_s
        if len(times) != self.frames or not times:
            rate = self.header_rate or 25.0
            times = [self.origin_s + index / rate for index in range(self.frames)]
        return timeline(times, self.origin_s, self.header_rate)


def read_video(
    path: Path, sniffed: Sniffed, limits: ReadLimits, sink: Sink | None = None, track: int | None = None
) -> VideoFacts:
    """
    Args:
        sink: gets each decoded frame in the order it is shown, and the facts so far; frames begin anew (`facts.decoded`
            is 1) where a stream turned out to be a cover.
        track: stream to read, as an earlier pass chose it.

    Raises:
        Refused: 413, 415 or 422, with the reason and a remedy.
    """
    check_whole(path, sniffed.name)
    facts = _pass(path, sniffed, limits, sink, track)
    longer = [index for index, packets in facts.others.items() if packets > 1]
    if facts.frames == 1 and longer:  # a cover that no header told from a clip
        facts = _pass(path, sniffed, limits, sink, max(longer, key=lambda index: facts.others[index]))
    return facts


def _pass(path: Path, sniffed: Sniffed, limits: ReadLimits, sink: Sink | None, wanted: int | None) -> VideoFacts:
    with open_video(path) as container:
        track = choose_track(container)
        if wanted is not None:
            why = f"video stream {wanted} of {len(container.streams.video)} was read, the only clip"
            track = Track(wanted, track.of, why, wanted == container.streams.video[0].index)
        stream = container.streams[track.index]
        codec = stream.codec_context
        if codec is None:
            raise unsupported("media_codec_unsupported", "the video's codec is unknown", COMMAND)
        facts = VideoFacts(
            container=sniffed.name,
            codec=_codec_name(codec),
            size=path.stat().st_size,
            track=track,
            width=codec.width,
            height=codec.height,
            header_frames=stream.frames or None,
            header_rate=float(stream.average_rate or stream.guessed_rate or 0) or None,
            header_duration_s=container.duration / 1_000_000 if container.duration else None,
            origin_s=container.start_time / 1_000_000 if container.start_time else 0.0,
            has_audio=bool(container.streams.audio),
        )
        check_pixels(facts.width, facts.height, limits.max_frame_pixels, "frame")
        codec.thread_count = 1
        codec.options = _STRICT
        _Pass(container, stream, facts, limits, sink).run()
    _check_complete(facts)
    return facts


def _codec_name(codec: Any) -> str:
    return {"libdav1d": "av1", "libvpx-vp9": "vp9", "libvpx": "vp8"}.get(codec.name, str(codec.name))


def check_pixels(width: int, height: int, limit: int, what: str) -> None:
    """Refuse by the header's word, before anything is decoded."""
    if width < 1 or height < 1:
        raise broken("media_no_pixels", f"the file declares a {what} size that no decoder takes", COMMAND)
    if width * height > limit:
        raise too_large(
            "media_too_many_pixels", f"a {what} of {width}x{height} pixels is more than {limit} pixels", SMALLER
        )


class _Pass:
    def __init__(self, container: Any, stream: Any, facts: VideoFacts, limits: ReadLimits, sink: Sink | None) -> None:
        self._container, self._stream, self._facts = container, stream, facts
        self._limits, self._sink = limits, sink
        self._codec = stream.codec_context
        self._decoding = True
        self._pixels = facts.width * facts.height
        self._error: Exception | None = None

    def run(self) -> None:
        import av

        facts, full = self._facts, self._limits.full_decode_pixels
        self._check_count(facts.header_frames or 0)  # before a frame of 100,000 large ones is decoded
        if full is not None and self._expected() * self._pixels > full:
            facts.whole = False
        av.logging.set_level(av.logging.ERROR)  # what a decoder says is evidence, see `_hidden`
        packets = self._container.demux()
        for number in itertools.count(1):
            try:
                packet = next(packets, None)
            except av.FFmpegError as error:
                self._error = self._error or error
                break
            if packet is None:
                break
            if number > self._limits.max_packets:
                raise too_large(
                    "media_too_long", f"the file holds more than {self._limits.max_packets} packets", FEWER_FRAMES
                )
            self._take(packet)
        if facts.decoded == 0:
            raise self._undecodable()
        if facts.whole and self._error is not None:
            raise self._damaged()
        if not facts.whole:
            self._check_end()

    def _expected(self) -> float:
        facts = self._facts
        return facts.header_frames or (facts.header_duration_s or 0.0) * (facts.header_rate or 25.0)

    def _take(self, packet: Any) -> None:
        facts = self._facts
        stamp = packet.pts if packet.pts is not None else packet.dts
        start = None if stamp is None else float(stamp * packet.time_base)
        if packet.size and start is not None:
            facts.last_end_s = max(facts.last_end_s, start + float((packet.duration or 0) * packet.time_base))
        if packet.stream_index != facts.track.index:
            if packet.size and packet.stream.type == "video":
                facts.others[packet.stream_index] = facts.others.get(packet.stream_index, 0) + 1
            return
        if packet.size:
            facts.stored += 1
            facts.flagged += packet.is_corrupt
            if facts.codec == "mjpeg":  # each frame has a size of its own
                for width, height in jpeg_sizes(bytes(packet)):
                    check_pixels(width, height, self._limits.max_frame_pixels, "frame")
            if not packet.is_discard:
                facts.packet_times_s.append(start if start is not None else facts.last_end_s)
            self._check_count(len(facts.packet_times_s))
        if self._decoding:
            self._decode(packet)

    def _check_count(self, frames: int) -> None:
        limits = self._limits
        if frames > limits.max_frames:
            raise too_large("media_too_long", f"the video has more than {limits.max_frames} frames", FEWER_FRAMES)
        if frames * self._pixels > limits.max_video_pixels:
            raise too_large(
                "media_too_many_pixels",
                f"{frames} frames or more of {self._facts.width}x{self._facts.height} are more than"
                f" {limits.max_video_pixels} pixels",
                "ffmpeg -i INPUT -vf scale=-2:360 -r 10 OUTPUT.mp4",
            )

    def _decode(self, packet: Any) -> None:
        import av

        facts = self._facts
        frames, error = [], None
        with av.logging.Capture() as said:
            try:
                frames = packet.decode()  # an empty one, at the end, flushes
            except (av.FFmpegError, ValueError) as raised:
                error = raised
        error = error or self._hidden(said)
        if error is not None:
            if facts.decoded or facts.container != "mpegts":  # a broadcast may begin between two keyframes
                self._error = self._error or error
                self._decoding = False
            return
        for frame in frames:
            self._show(frame)
        if not packet.size or (not facts.whole and facts.decoded >= _HEAD_FRAMES):
            self._decoding = False
        elif facts.whole and facts.decoded * self._pixels > (self._limits.full_decode_pixels or math.inf):
            facts.whole, self._decoding = False, False  # the header understated

    def _hidden(self, said: Sequence[tuple[int, str, str]]) -> Exception | None:
        """Damage that a decoder only logs: FFV1's wrong checksums, blocks that MPEG-2 skips, ProRes' damaged slices."""
        import av

        for level, name, text in said:
            if level <= av.logging.ERROR and name == self._codec.name and not text.startswith(_HARMLESS):
                return ValueError(text.strip()[:80])
        return None

    def _show(self, frame: Any) -> None:
        facts = self._facts
        check_pixels(frame.width, frame.height, self._limits.max_frame_pixels, "frame")
        if facts.decoded == 0:
            facts.first = frame
            facts.pixel_format = frame.format.name
            facts.width, facts.height = frame.width, frame.height
            self._pixels = frame.width * frame.height
            aspect = self._stream.sample_aspect_ratio or self._codec.sample_aspect_ratio
            facts.geometry = of_frame(frame, Fraction(aspect) if aspect else None)
        elif (frame.width, frame.height) != (facts.width, facts.height):
            raise broken(
                "media_size_changes",
                f"after {facts.decoded} frames the size changes from {facts.width}x{facts.height} to"
                f" {frame.width}x{frame.height}",
                SAME_SIZE,
            )
        facts.decoded += 1
        facts.interlaced |= frame.interlaced_frame
        self._check_count(facts.decoded)
        if frame.pts is not None:
            facts.frame_times_s.append(float(frame.pts * (frame.time_base or self._stream.time_base)))
        if self._sink is not None:
            self._sink(frame, facts)

    def _check_end(self) -> None:
        """Decode from the last keyframe on."""
        import av

        facts, last = self._facts, None
        if not facts.packet_times_s:
            raise self._undecodable()
        try:
            self._container.seek(int(max(facts.packet_times_s) / self._stream.time_base), stream=self._stream)
            for frame in self._container.decode(self._stream):
                last = frame
        except (av.FFmpegError, ValueError) as error:
            self._error = error
            raise self._damaged() from None
        if last is None:
            raise self._damaged()

    def _undecodable(self) -> Refused:
        facts = self._facts
        if facts.flagged or not facts.stored:
            return missing("no frame of it is there")
        reason = f" ({words(self._error)})" if self._error else ""
        return broken("media_corrupt", f"no frame of the {facts.codec} video decodes{reason}", COMMAND)

    def _damaged(self) -> Refused:
        facts = self._facts
        declared = facts.header_frames or 0
        if (facts.flagged and facts.container != "mpegts") or facts.stored < declared:
            return missing(f"after {facts.decoded} of {declared or 'its'} frames")
        reason = f" ({words(self._error)})" if self._error else ""
        return broken(
            "media_corrupt", f"the {facts.codec} video is damaged after {facts.decoded} frames{reason}", COMMAND
        )


def _check_complete(facts: VideoFacts) -> None:
    declared = facts.header_frames
    if declared is not None and facts.stored < declared:
        raise broken(
            "media_frame_count_wrong", f"the header counts {declared} frames, the file holds {facts.stored}", RECOUNT
        )
    if facts.flagged and facts.container != "mpegts":
        raise missing(f"after {facts.last_end_s:.1f} s")
    total = facts.header_duration_s or 0.0
    short = total - (facts.last_end_s - facts.origin_s)
    if declared is None and facts.container == "matroska" and short > max(0.3, 0.02 * total):
        raise missing(f"after {facts.last_end_s:.1f} of {total:.1f} s")
