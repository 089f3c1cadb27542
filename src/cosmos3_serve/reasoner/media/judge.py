"""From what the room `media/` found to a verdict: let a file pass, copy it, or refuse it with what was found and the
command that fixes it.

Pure. What is broken or not all there was refused while it was read; copied is what is sound but would be shown wrongly
by a replica (`replica` says what that is); refused here is what is too long or too large for a question.
"""

from __future__ import annotations

from cosmos3_serve.media.colour import Colour
from cosmos3_serve.media.record import MediaRecord
from cosmos3_serve.media.refusal import COMMAND, broken, too_large
from cosmos3_serve.media.still import CROPPED, GREY_SCALED, PROFILE_CONVERTED
from cosmos3_serve.media.timeline import Timeline, drift
from cosmos3_serve.media.video import VideoFacts
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.replica import ReplicaDecoder

LATE_S = 0.1  # a first picture this late is stamped too early by replicas, which count from it


def judge_video(
    facts: VideoFacts, record: MediaRecord, times: Timeline, limits: MediaLimits, decoder: ReplicaDecoder
) -> tuple[MediaInfo, list[str]]:
    """What the clip is, and why it must be copied first (empty: it need not).

    Raises:
        Refused: 413 or 422.
    """
    if record.frames < limits.min_frames:
        raise broken(
            "media_too_few_frames",
            f"the video has {record.frames} frame(s), at least {limits.min_frames} are needed",
            "send it as image_url: ffmpeg -i INPUT -frames:v 1 OUTPUT.png",
        )
    info = MediaInfo.of(record, header_frames=facts.header_frames, replica_frames=_replica_frames(facts))
    _check_size(info, limits)
    reasons = list(_reasons(facts, record, times, limits, decoder))
    if reasons:
        check_effort(info, record, limits)
    return info, reasons


def judge_image(record: MediaRecord) -> tuple[MediaInfo, list[str]]:
    """Replicas turn pictures by EXIF and put transparency on white, or on the colour that the request names."""
    copied = [done for done in record.conversions if done in (GREY_SCALED, PROFILE_CONVERTED)]
    return MediaInfo.of(record), copied


def _check_size(info: MediaInfo, limits: MediaLimits) -> None:
    pixels = info.width * info.height
    if max(info.width, info.height) > limits.max_aspect * min(info.width, info.height):
        raise broken(
            "media_aspect_extreme",
            f"{info.width}x{info.height} pixels: one side is {limits.max_aspect:g} times the other",
            CROPPED.replace(".png", ".mp4"),
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


def _reasons(
    facts: VideoFacts, record: MediaRecord, times: Timeline, limits: MediaLimits, decoder: ReplicaDecoder
) -> list[str]:
    reasons = []
    if facts.codec not in decoder.codecs:
        reasons.append(f"replicas cannot decode {facts.codec}")
    if facts.container not in decoder.containers:
        reasons.append(f"replicas cannot seek in {facts.container}")
    if record.mirrored:
        reasons.append("mirrored")
    elif record.rotation and not decoder.turns_upright:
        reasons.append(f"rotated by {record.rotation} degrees")
    if record.sample_aspect != "1:1":
        reasons.append(f"pixels of {record.sample_aspect}")
    colour = Colour(record.matrix, record.range, record.primaries, record.transfer, record.bit_depth, record.alpha)
    if not colour.plain:
        reasons += colour.conversions
    if record.interlaced:
        reasons.append("interlaced")
    if not facts.track.first:
        reasons.append(facts.track.why)
    if record.start_s > LATE_S:
        reasons.append(f"the first picture is shown after {record.start_s:.2f} s")
    # What a replica multiplies an index with is the header's rate, where there is one.
    if drift(times.times_s, facts.header_rate or record.fps) > limits.drift_s:
        reasons.append("variable frame rate")
    elif _replica_frames(facts) < record.frames - 1:
        reasons.append("the container counts no frames")
    return reasons


def _replica_frames(facts: VideoFacts) -> int:
    """Frames as a replica counts them: the header's number, else duration times rate; corrected where it is too large
    by more than one."""
    reckoned = facts.header_frames or int((facts.header_duration_s or 0.0) * (facts.header_rate or 0.0) + 0.5)
    return facts.frames if reckoned > facts.frames + 1 else reckoned


def check_effort(info: MediaInfo, record: MediaRecord, limits: MediaLimits) -> None:
    """Refuse what would take too long to copy here."""
    if (info.frames + record.start_s * record.fps) * info.width * info.height > limits.max_normalise_pixels:
        raise too_large(
            "media_needs_conversion",
            f"replicas cannot use {info.codec} in {info.container} as it is, and it is too large to convert here",
            f"{COMMAND} (with -fps_mode cfr where the frame rate varies)",
        )
