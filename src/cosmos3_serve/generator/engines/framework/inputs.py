"""A sample's pictures and clips for the framework, which opens the files itself with readers of its own.

Each file is read by our room first, so that what is damaged or not all there is refused with the reason. Where a plain
reader would show something else (high dynamic range, pixels that are not square, another track, sixteen bits, …), the
framework gets a clean copy: PNG, or H.264 without loss.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cosmos3_serve.contract.modes import HINTS
from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.engines.encode import write_mp4
from cosmos3_serve.generator.engines.inputs import Wanted
from cosmos3_serve.generator.engines.job import EngineJob
from cosmos3_serve.media.record import MediaRecord

FOLDER = ".inputs"
LOSSLESS = 10  # of `write_mp4`


@dataclass
class Inputs:
    """
    Args:
        args: the job's, with copies in place of what needed one.
        media: what was read, by field (`MediaRecord.as_dict`).
        copies: copy to the original's path.
    """

    args: dict[str, Any]
    media: dict[str, dict[str, Any]] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)

    def named(self, value: Any) -> Any:
        """What the framework echoes, with the originals' paths in place of the copies'."""
        if isinstance(value, dict):
            return {name: self.named(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.named(item) for item in value]
        return self.copies.get(value, value) if isinstance(value, str) else value


@contextmanager
def clean_inputs(job: EngineJob) -> Iterator[Inputs]:
    """Read the job's media, and keep the copies until the end of the block. Blocking.

    Raises:
        SampleError: `input_invalid` with the reason and a remedy; `staging_failed` where our disk or process fails.
    """
    inputs = Inputs({**job.args})
    folder = Path(job.output_dir) / FOLDER
    try:
        for name, path in _files(job.args):
            record = Wanted(path, name, max_frames=1).read().record
            inputs.media[name] = record.as_dict()
            if not _plain(record):
                copy = _copied(path, name, record, folder)
                inputs.copies[copy] = path
                _put(inputs.args, name, copy)
        yield inputs
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _files(args: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if args.get("vision_path"):
        yield "vision_path", args["vision_path"]
    for hint in HINTS:
        given = args.get(hint)
        if isinstance(given, dict) and given.get("control_path"):
            yield f"{hint}.control_path", given["control_path"]


def _put(args: dict[str, Any], name: str, path: str) -> None:
    hint, _, key = name.rpartition(".")
    if hint:
        args[hint] = {**args[hint], key: path}
    else:
        args[name] = path


def _plain(record: MediaRecord) -> bool:
    """Whether a reader that knows neither tags nor tracks shows the same."""
    chosen = any("was read" in note for note in record.notes)
    return not (record.conversions or record.tracks > 1 or record.interlaced or chosen)


def _copied(path: str, name: str, record: MediaRecord, folder: Path) -> str:
    from PIL import Image

    whole = Wanted(path, name).read()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stem = folder / name.replace(".", "_")
        if record.kind == "image":
            Image.fromarray(whole.frames[0]).save(f"{stem}.png")
            return f"{stem}.png"
        write_mp4(stem.with_suffix(".mp4"), whole.frames, whole.fps, LOSSLESS)
        return str(stem.with_suffix(".mp4"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise SampleError(SampleCode.STAGING_FAILED, f"{name}: a copy cannot be written: {reason}") from None
