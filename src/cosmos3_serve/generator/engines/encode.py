"""Write media the way upstream does, atomically: a reader finds a whole file or none.

JPEG through Pillow at the sample's quality; MP4 as H.264 yuv420p through imageio's ffmpeg with its 0 to 10 quality, odd
sides padded by repeating the last row.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from cosmos3_serve.generator.engines.inputs import Frames
from cosmos3_serve.media.container import check_whole
from cosmos3_serve.media.refusal import Refused

# x264's output depends on its number of threads; a fixed one gives the same bytes on machines of any size.
_THREADS = "4"
FULL_BYTES = 4 * 1024**2  # free on a disk that an encoder calls full


def write_jpeg(path: Path, frame: Frames, quality: int) -> None:
    """`frame` [H, W, 3] uint8; `quality` 0 to 100."""
    with _whole_file(path) as partial:
        Image.fromarray(frame).save(partial, format="JPEG", quality=quality)


def write_mp4(path: Path, frames: Frames, fps: float, quality: int) -> None:
    """`frames` [T, H, W, 3] uint8; `quality` 0 to 10 as imageio understands it (10 is lossless)."""
    import imageio.v2 as imageio

    height, width = frames.shape[1:3]
    pad = ((0, height % 2), (0, width % 2), (0, 0))
    with _whole_file(path) as partial:
        writer = imageio.get_writer(
            partial,
            format="FFMPEG",
            mode="I",
            fps=fps,
            codec="libx264",
            pixelformat="yuv420p",
            quality=None,  # imageio's own scale, spelled out below, since imageio refuses its 0
            macro_block_size=1,
            ffmpeg_log_level="error",
            output_params=["-crf", str(int((1 - quality / 10) * 51)), "-threads", _THREADS],
        )
        with writer:
            for frame in frames:
                writer.append_data(np.pad(frame, pad, mode="edge") if any(p[1] for p in pad) else frame)
        _check_written(partial, len(frames))


def _check_written(path: Path, frames: int) -> None:
    """The encoder is another process, and imageio does not look at how it ended: a full disk may leave half a clip.

    Raises:
        OSError: it did not write all frames.
    """
    import av

    try:
        check_whole(path, "mp4")
        with av.open(str(path)) as container:
            written = container.streams.video[0].frames
    except (Refused, av.FFmpegError, IndexError):
        written = 0
    if written != frames:
        raise OSError(errno.EIO, f"the encoder wrote {written} of {frames} frames")


def write_text(path: Path, text: str) -> None:
    with _whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def _whole_file(path: Path) -> Iterator[Path]:
    """A sibling to write into; takes the place of `path` when the block ends well, and vanishes otherwise."""
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=".part-", suffix=path.suffix)
    os.close(fd)
    partial = Path(name)
    try:
        yield partial
        with partial.open("rb+") as stream:
            os.fsync(stream.fileno())
        partial.chmod(0o644)
        partial.replace(path)
    except OSError as error:
        full = error.errno in (None, errno.EPIPE, errno.EIO) and shutil.disk_usage(path.parent).free < FULL_BYTES
        partial.unlink(missing_ok=True)
        if full:  # the encoder's process says only that it ended
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
