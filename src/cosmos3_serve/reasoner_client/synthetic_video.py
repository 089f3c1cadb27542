"""A video made on the spot: moving shapes, no external data. Made with FFmpeg where it is present, else with PyAV."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from cosmos3_serve.errors import ServiceFailure, UsageError

FFMPEG_TIMEOUT_S = 120.0


def make_video(
    path: Path, *, seconds: int = 30, fps: int = 2, size: tuple[int, int] = (640, 360), ffmpeg: str | None = None
) -> str:
    """Write an H.264 MP4. Blocking.

    Args:
        ffmpeg: the program; None looks for it.

    Returns:
        What made it: `ffmpeg` or `pyav`.

    Raises:
        ServiceFailure: FFmpeg is there and fails.
        UsageError: neither is there.
    """
    program = shutil.which("ffmpeg") if ffmpeg is None else ffmpeg
    if program:
        _with_ffmpeg(program, path, seconds, fps, size)
        return "ffmpeg"
    _with_pyav(path, seconds * fps, fps, size)
    return "pyav"


def _with_ffmpeg(program: str, path: Path, seconds: int, fps: int, size: tuple[int, int]) -> None:
    source = f"testsrc2=size={size[0]}x{size[1]}:rate={fps}:duration={seconds}"
    command = [program, "-nostdin", "-hide_banner", "-loglevel", "error", "-y", "-f", "lavfi", "-i", source]
    command += ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=FFMPEG_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceFailure(f"ffmpeg made no video ({type(error).__name__})", code="ffmpeg_failed") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ServiceFailure(
            f"ffmpeg made no video: {said[-1][:200] if said else done.returncode}", code="ffmpeg_failed"
        )


def _with_pyav(path: Path, frames: int, fps: int, size: tuple[int, int]) -> None:
    try:
        import av
        from PIL import Image, ImageDraw
    except ImportError:
        raise UsageError("a video needs ffmpeg or the package av", remedy="install ffmpeg, or pip install av") from None
    width, height = size
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            picture = Image.new("RGB", size, (24, 48, 96))
            draw = ImageDraw.Draw(picture)
            left = number * 16 % (width - 80)
            draw.rectangle((left, height // 2 - 40, left + 80, height // 2 + 40), fill=(240, 140, 20))
            draw.ellipse((width - 120, 20, width - 60, 80), fill=(20, 200, 90))
            draw.text((10, 10), f"frame {number}", fill=(255, 255, 255))
            for packet in stream.encode(av.VideoFrame.from_image(picture)):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
