"""From facts to a verdict: let it pass, normalise it, or refuse it with what was found and the command that fixes it.

Pure. Refused is what is broken or lies about itself; normalised is what is sound but would be shown wrongly by a
replica (`replica` says what that is).
"""

from __future__ import annotations

import statistics
from itertools import pairwise

from cosmos3_serve.media.refusal import COMMAND, broken, too_large
from cosmos3_serve.reasoner.media.examine import TRUNCATED, TURNS, VideoFacts
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.replica import ReplicaDecoder

RECOUNT = (
    "ffmpeg -i INPUT -map 0:v:0 -c copy OUTPUT.mkv && ffmpeg -i OUTPUT.mkv -c copy -movflags +faststart OUTPUT.mp4"
)


def judge_video(
    facts: VideoFacts, mime: str, limits: MediaLimits, decoder: ReplicaDecoder
) -> tuple[MediaInfo, list[str]]:
    """What the clip is, and why it must be normalised first (empty: it need not).

    Raises:
        Refused: 413 or 422.
    """
    _check_whole(facts, limits)
    turn = TURNS[facts.matrix] if facts.matrix else (0, False)
    width, height = (facts.height, facts.width) if turn[0] % 180 else (facts.width, facts.height)
    fps, even = frame_rate(facts, limits)
    info = MediaInfo(
        kind="video",
        mime=mime,
        container=facts.container,
        codec=facts.codec,
        pixel_format=facts.pixel_format,
        width=width,
        height=height,
        frames=facts.frames,
        fps=fps,
        duration_s=facts.frames / fps,
        size=facts.size,
        variable_rate=not even,
        rotation=turn[0],
        mirrored=turn[1],
        header_frames=facts.header_frames,
        replica_frames=_replica_frames(facts),
        has_audio=facts.has_audio,
    )
    _check_size(info, limits)
    reasons = list(_reasons(facts, info, limits, decoder))
    if reasons:
        check_effort(info, limits)
    return info, reasons


def _check_whole(facts: VideoFacts, limits: MediaLimits) -> None:
    declared = facts.header_frames
    missing = declared is not None and facts.stored < declared
    short = (facts.header_duration_s or 0.0) - facts.last_end_s
    if facts.corrupt or (declared is None and short > max(0.3, 0.02 * (facts.header_duration_s or 0.0))):
        where = f"after {facts.frames} of {declared} frames" if missing else f"after {facts.last_end_s:.1f} s"
        raise broken("media_truncated", f"the video is cut off {where}", TRUNCATED)
    if declared is not None and facts.stored != declared:
        raise broken(
            "media_frame_count_wrong", f"the header counts {declared} frames, the file holds {facts.stored}", RECOUNT
        )
    if facts.frames < limits.min_frames:
        raise broken(
            "media_too_few_frames",
            f"the video has {facts.frames} frame(s), at least {limits.min_frames} are needed",
            "send it as image_url: ffmpeg -i INPUT -frames:v 1 OUTPUT.png",
        )
    if facts.decoded < facts.tried - max(1, facts.tried // 50):
        raise broken(
            "media_corrupt", f"of {facts.tried} frames of the {facts.codec} video only {facts.decoded} decode", COMMAND
        )
    if facts.matrix is None:
        raise broken("media_rotation_unsupported", "the video is turned by no quarter turn", COMMAND)


def frame_rate(facts: VideoFacts, limits: MediaLimits) -> tuple[float, bool]:
    """Frames per second, and whether they come evenly.

    The header's rate, which replicas go by, unless the frames' own times contradict it.
    """
    times, header = facts.times_s, facts.header_rate
    gaps = [after - before for before, after in pairwise(times)]
    if times[-1] <= 0:
        return header or 25.0, False
    usual = statistics.median(gaps)
    even = all(abs(gap - usual) <= max(0.1 * usual, 0.0015) for gap in gaps)  # containers round to milliseconds
    believed = header is not None and drift(facts, header) <= limits.drift_s
    return header if believed and header else len(gaps) / times[-1], even


def drift(facts: VideoFacts, fps: float) -> float:
    """How far, at worst, a frame's time is from index / fps, in seconds."""
    return max(abs(time - index / fps) for index, time in enumerate(facts.times_s))


def _check_size(info: MediaInfo, limits: MediaLimits) -> None:
    pixels = info.width * info.height
    if max(info.width, info.height) > limits.max_aspect * min(info.width, info.height):
        raise broken(
            "media_aspect_extreme",
            f"{info.width}x{info.height} pixels: one side is {limits.max_aspect:g} times the other",
        )
    if info.duration_s > limits.max_duration_s:
        raise too_large(
            "media_too_long",
            f"the video lasts {info.duration_s:.0f} s, at most {limits.max_duration_s:g} s are taken",
            f"ffmpeg -i INPUT -t {limits.max_duration_s:g} -c copy OUTPUT.mp4",
        )
    if info.frames * pixels > limits.max_video_pixels:
        raise too_large(
            "media_too_many_pixels",
            f"{info.frames} frames of {info.width}x{info.height} are more than {limits.max_video_pixels} pixels",
            "ffmpeg -i INPUT -vf scale=-2:360 -r 10 OUTPUT.mp4",
        )


def _reasons(facts: VideoFacts, info: MediaInfo, limits: MediaLimits, decoder: ReplicaDecoder) -> list[str]:
    reasons = []
    if facts.codec not in decoder.codecs:
        reasons.append(f"replicas cannot decode {facts.codec}")
    if facts.container not in decoder.containers:
        reasons.append(f"replicas cannot seek in {facts.container}")
    if info.mirrored:
        reasons.append("mirrored")
    elif info.rotation and not decoder.turns_upright:
        reasons.append(f"rotated by {info.rotation} degrees")
    # What a replica multiplies an index with is the header's rate, where there is one.
    if drift(facts, facts.header_rate or info.fps) > limits.drift_s:
        reasons.append("variable frame rate")
    elif _replica_frames(facts) < facts.frames - 1:
        reasons.append("the container counts no frames")
    return reasons


def _replica_frames(facts: VideoFacts) -> int:
    """Frames as a replica counts them: the header's number, else duration times rate; corrected where it is too large
    by more than one."""
    reckoned = facts.header_frames or int((facts.header_duration_s or 0.0) * (facts.header_rate or 0.0) + 0.5)
    return facts.frames if reckoned > facts.frames + 1 else reckoned


def check_effort(info: MediaInfo, limits: MediaLimits) -> None:
    """Refuse what would take too long to normalise here."""
    if info.frames * info.width * info.height > limits.max_normalise_pixels:
        raise too_large(
            "media_needs_conversion",
            f"replicas cannot use {info.codec} in {info.container} as it is, and it is too large to convert here",
            f"{COMMAND} (with -fps_mode cfr where the frame rate varies)",
        )
