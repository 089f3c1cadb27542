"""The process that decodes downloaded media, so that a hostile file can crash, hang or fill only this process.

Started as `python -m cosmos3_serve.publication.media_probe`: one JSON object a line in (`{"path", "expect"}`), one a
line out (`{"ok", "reason", "kind", "width", "height", "frames"}`). It has a limit on memory, opens no network, and is
killed by its parent when a file takes too long. It loads the standard library and the decoders alone: several are
started for each batch, and the contract's models alone would make a start five times as expensive.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

MEMORY_BYTES = 2 * 1024**3  # of address space, so few threads: each reserves some
THREADS = 2
MAX_PIXELS = 64 * 1024 * 1024  # of one image or frame
MAX_FRAMES = 20_000  # of a clip whose length nothing binds
MAX_TEXT_BYTES = 16 * 1024 * 1024


class Expectation(NamedTuple):
    """One file's proof: its kind, and size and frame count where the request fixes them (pixels, frames)."""

    kind: Literal["image", "video", "text"]
    image_format: str | None = None
    width: int | None = None
    height: int | None = None
    frames: int | None = None
    max_pixels: int = MAX_PIXELS
    max_frames: int = MAX_FRAMES


class Wrong(Exception):
    """The file is not what it must be; the message says why."""


def probe(path: Path, expect: Expectation) -> dict[str, Any]:
    """Decode one file completely.

    Raises:
        Wrong: it does not decode, or size or frame count differ from what is expected.
    """
    if expect.kind == "text":
        return _text(path)
    return _image(path, expect) if expect.kind == "image" else _video(path, expect)


def _text(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MAX_TEXT_BYTES:
        raise Wrong(f"the text is larger than {MAX_TEXT_BYTES} bytes")
    try:
        path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise Wrong("the text is not UTF-8") from None
    return {"kind": "text"}


def _image(path: Path, expect: Expectation) -> dict[str, Any]:
    import warnings

    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # our own limit below is checked before any pixel is decoded
    warnings.simplefilter("ignore")
    try:
        with Image.open(path, formats=["JPEG", "PNG", "WEBP"]) as image:
            width, height = image.size
            if image.format != expect.image_format:
                raise Wrong(f"the file is a {image.format}, its name says {expect.image_format}")
            _check_size(width, height, expect)
            image.load()
    except Wrong:
        raise
    except Exception as error:
        raise Wrong(f"the image does not decode ({type(error).__name__})") from None
    return {"kind": "image", "width": width, "height": height}


def _video(path: Path, expect: Expectation) -> dict[str, Any]:
    import av

    frames = width = height = 0
    limit = expect.max_frames if expect.frames is None else expect.frames
    try:
        with av.open(str(path), format="mp4") as container:
            if not container.streams.video:
                raise Wrong("the file has no video stream")
            stream = container.streams.video[0]
            width, height = stream.codec_context.width, stream.codec_context.height
            _check_size(width, height, expect)
            stream.codec_context.thread_count = THREADS
            for frame in container.decode(stream):
                if (frame.width, frame.height) != (width, height):
                    raise Wrong("the frames change their size")
                frames += 1
                if frames > limit:
                    raise Wrong(f"the video has more than {limit} frames")
    except Wrong:
        raise
    except Exception as error:
        raise Wrong(f"the video does not decode ({type(error).__name__})") from None
    if frames == 0 or (expect.frames is not None and frames != expect.frames):
        raise Wrong(f"the video has {frames} frames, expected {expect.frames or 'at least 1'}")
    return {"kind": "video", "width": width, "height": height, "frames": frames}


def _check_size(width: int, height: int, expect: Expectation) -> None:
    if width < 1 or height < 1 or width * height > expect.max_pixels:
        raise Wrong(f"{width}x{height} pixels are outside 1 to {expect.max_pixels}")
    if expect.width is not None and (width, height) != (expect.width, expect.height):
        raise Wrong(f"it is {width}x{height} pixels, expected {expect.width}x{expect.height}")


def _limit_memory() -> None:
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    _limit_memory()
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = {"ok": True, **probe(Path(job["path"]), Expectation(**job["expect"]))}
        except Wrong as error:
            answer = {"ok": False, "reason": str(error)}
        except MemoryError:
            answer = {"ok": False, "reason": "decoding needs too much memory"}
        except OSError as error:
            answer = {"ok": False, "reason": f"the file cannot be read ({error.strerror})"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
