"""VideoSet: distinct synthetic clips in a directory, listed by content. Made once, taken up again where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Literal

import av
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cosmos3_serve.bench import picture, scene_clips
from cosmos3_serve.errors import InputError, IntegrityError, ServiceFailure

LISTING = "videos.json"
MAX_VIDEOS = 100_000
# Up to so many clips the listing is written with each; beyond, so seldom that writing takes a twentieth of the time.
EVERY, SPARING = 1000, 20
# Which FFmpeg encoder makes a codec, and in which container servers expect it.
CODECS = {
    "h264": ("libx264", "mp4", {"preset": "veryfast", "threads": "1"}),
    "hevc": ("libx265", "mp4", {"preset": "veryfast", "x265-params": "log-level=none:pools=1:frame-threads=1"}),
    "vp9": ("libvpx-vp9", "webm", {"deadline": "realtime", "cpu-used": "8", "threads": "1"}),
    "mpeg4": ("mpeg4", "mp4", {"threads": "1"}),
}
MIME = {"mp4": "video/mp4", "webm": "video/webm"}


class Recipe(BaseModel):
    """What each clip is. `fps` frames a second for `seconds`, `width` × `height` pixels, both even; `content` is shapes
    that move about, or block-world scenes, whose questions have right answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seconds: int = Field(default=30, ge=1, le=3600)
    fps: int = Field(default=2, ge=1, le=60)
    width: int = Field(default=640, ge=16, le=4096, multiple_of=2)
    height: int = Field(default=360, ge=16, le=4096, multiple_of=2)
    codec: str = Field(default="h264", pattern="^(h264|hevc|vp9|mpeg4)$")
    content: Literal["shapes", "scenes"] = "shapes"

    @property
    def frames(self) -> int:
        return self.seconds * self.fps

    @property
    def suffix(self) -> str:
        return CODECS[self.codec][1]


# As the block-world model was trained: 9 frames, of which it sees four.
SCENES = Recipe(seconds=1, fps=9, width=320, height=192, content="scenes")


class Video(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^video-[0-9]{5}\.(mp4|webm)$")
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    bytes: int = Field(ge=1)


class VideoSet(BaseModel):
    """The listing beside the clips. `videos` is in order of their numbers."""

    model_config = ConfigDict(extra="forbid")

    schema_version: str = Field(default="cosmos3.bench.videos.v1", pattern=r"^cosmos3\.bench\.videos\.v1$")
    recipe: Recipe
    made_by: str
    videos: list[Video] = []

    @classmethod
    def read(cls, directory: Path) -> VideoSet:
        """
        Raises:
            InputError: there is no listing (code `videos_missing`), or it cannot be read (`videos_unreadable`).
        """
        try:
            return cls.model_validate_json((directory / LISTING).read_bytes())
        except FileNotFoundError:
            raise InputError(
                f"{directory} holds no {LISTING}", code="videos_missing", remedy="make them: cosmos3 bench videos"
            ) from None
        except (OSError, ValidationError) as error:
            raise InputError(
                f"{directory / LISTING} cannot be read: {str(error).splitlines()[0]}",
                code="videos_unreadable",
                remedy="remove the file and make the clips again: cosmos3 bench videos",
            ) from None


def make_videos(
    directory: Path,
    count: int,
    recipe: Recipe,
    *,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda made: None,
) -> VideoSet:
    """Make what is missing of `count` clips and list them. Blocking; whole clips of an earlier call are kept.

    Args:
        workers: processes that encode; None: one a core. What is for one alone is done in this process.
        progress: told how many clips are there.

    Raises:
        InputError: the directory holds clips of another recipe (code `videos_other_recipe`), or cannot be written.
        IntegrityError: two clips have the same content, or one has not the frames it should have.
    """
    if not 1 <= count <= MAX_VIDEOS:
        raise InputError(f"{count} videos: give 1 to {MAX_VIDEOS}")
    known = _known(directory, recipe)
    wanted = {f"video-{number:05d}.{recipe.suffix}" for number in range(count)}
    # More than are wanted now stay listed: a smaller run does not cost a larger one its clips.
    found = {name: video for name, video in known.items() if name not in wanted and (directory / name).is_file()}
    others = len(found)
    missing = []
    for number in range(count):
        name = f"video-{number:05d}.{recipe.suffix}"
        kept = _kept(directory / name, known.get(name))
        if kept is None:
            missing.append(number)
        else:
            found[name] = kept
    progress(len(found) - others)
    due = 0.0
    made = _made(directory, missing, recipe, workers or os.cpu_count() or 1)
    try:
        for video in made:
            found[video.name] = video
            # A clip that is told is listed, whatever ends this process; a long listing takes a share of the time.
            if len(found) <= EVERY or time.monotonic() >= due:
                began = time.monotonic()
                _write(directory, recipe, found)
                due = time.monotonic() + SPARING * (time.monotonic() - began)
            progress(len(found) - others)
    finally:
        made.close()
        _write(directory, recipe, found)
    refuse_duplicates(list(found.values()))
    return VideoSet.read(directory)


def _made(directory: Path, missing: list[int], recipe: Recipe, workers: int) -> Generator[Video, None, None]:
    """Clips as they become whole. What one process would do is done in this one: to start another takes 0.6 s."""
    if min(workers, len(missing)) <= 1:
        for number in missing:
            yield make_video(directory, number, recipe)
        return
    # Spawned, since a fork of a process with threads (progress bars, event loops) may hang.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        jobs = [pool.submit(make_video, directory, number, recipe) for number in missing]
        try:
            for job in as_completed(jobs):
                yield job.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """A process that encodes would wait for ever for work from one that was killed."""
    parent = parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def make_video(directory: Path, number: int, recipe: Recipe) -> Video:
    """One clip, under its name only when it is whole. Blocking."""
    name = f"video-{number:05d}.{recipe.suffix}"
    part = directory / f".{name}.{os.getpid()}.part"
    try:
        _encode(part, number, recipe)
        _probe(part, recipe)
        video = listed(part, name)
        part.replace(directory / name)
    except OSError as error:
        raise InputError(f"cannot write {name}: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
    return video


def listed(path: Path, name: str = "") -> Video:
    """A file as the listing has it. Blocking."""
    return Video(name=name or path.name, sha256=_sha256(path), bytes=path.stat().st_size)


def refuse_duplicates(videos: list[Video]) -> None:
    """
    Raises:
        IntegrityError: two clips have the same bytes: caches would make one of them a repeat of the other.
    """
    seen: dict[str, str] = {}
    for video in videos:
        other = seen.setdefault(video.sha256, video.name)
        if other != video.name:
            raise IntegrityError(
                f"{other} and {video.name} have the same content", code="videos_duplicate", remedy="remove one of them"
            )


def _encode(path: Path, number: int, recipe: Recipe) -> None:
    encoder, container, options = CODECS[recipe.codec]
    if encoder not in av.codecs_available:
        raise InputError(
            f"this PyAV has no encoder for {recipe.codec}", remedy=f"choose another codec of {', '.join(CODECS)}"
        )
    muxing = {"movflags": "faststart"} if container == "mp4" else {}
    with av.open(str(path), "w", format=container, options=muxing) as output:
        stream = output.add_stream(encoder, rate=recipe.fps, options=dict(options))
        stream.width, stream.height, stream.pix_fmt = recipe.width, recipe.height, "yuv420p"
        frames = scene_clips.frames if recipe.content == "scenes" else picture.frames
        for shown in frames(number, recipe.frames, (recipe.width, recipe.height)):
            output.mux(stream.encode(av.VideoFrame.from_image(shown)))
        output.mux(stream.encode(None))


def _probe(path: Path, recipe: Recipe) -> None:
    with av.open(str(path)) as source:
        decoded = sum(1 for _ in source.decode(video=0))
    if decoded != recipe.frames:
        raise ServiceFailure(f"a clip of {recipe.frames} frames came out with {decoded}", code="video_not_made")


def _known(directory: Path, recipe: Recipe) -> dict[str, Video]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make {directory}: {error.strerror}") from None
    _clear(directory)
    if not (directory / LISTING).exists():
        return {}
    listing = VideoSet.read(directory)
    if listing.recipe != recipe:
        raise InputError(
            f"{directory} holds clips of another recipe ({listing.recipe.model_dump_json()})",
            code="videos_other_recipe",
            remedy="name another directory, or the same --content, --seconds, --fps, --size and --codec",
        )
    return {video.name: video for video in listing.videos}


def _clear(directory: Path) -> None:
    """Remove what processes that are no more left half made."""
    for part in directory.glob(".video*.part"):
        pid = part.name.split(".")[-2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            part.unlink(missing_ok=True)


def _kept(path: Path, known: Video | None) -> Video | None:
    """A clip of an earlier call, if every byte of it is still as listed."""
    if known is None or not path.is_file() or path.stat().st_size != known.bytes:
        return None
    return known if _sha256(path) == known.sha256 else None


def _write(directory: Path, recipe: Recipe, found: dict[str, Video]) -> VideoSet:
    listing = VideoSet(recipe=recipe, made_by=f"PyAV {av.__version__}", videos=[found[name] for name in sorted(found)])
    part = directory / f".{LISTING}.{os.getpid()}.part"
    part.write_text(json.dumps(listing.model_dump(mode="json"), indent=1) + "\n", encoding="utf-8")
    part.replace(directory / LISTING)
    return listing


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
