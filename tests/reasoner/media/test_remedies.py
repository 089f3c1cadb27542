"""The commands that refusals recommend, run by ffmpeg as Debian has it: what they write is let in."""

import ast
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support import clips
from support.corpus import stills
from support.corpus.files import corpus
from support.corpus.video import clip

import cosmos3_serve
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.replica import ReplicaDecoder
from cosmos3_serve.reasoner.media.worker import answer

FFMPEG = shutil.which("ffmpeg")
needs_ffmpeg = pytest.mark.skipif(FFMPEG is None, reason="no ffmpeg: apt-get install ffmpeg")
SOURCE = Path(cosmos3_serve.__file__).parent
# "ffmpeg …" up to the end of the command; two commands joined by && are one.
COMMAND = re.compile(r"ffmpeg -.*?OUT(?:PUT)?\.\w+(?: && ffmpeg .*OUTPUT\.\w+)?")


@dataclass(frozen=True)
class Case:
    code: str
    make: Callable[[Path], Any]
    kind: str = "video"
    suffix: str = "mp4"
    limits: dict[str, Any] = field(default_factory=dict)
    after: str = ""  # the kind that the result is sent as

    def __str__(self) -> str:
        return f"{self.code}-{self.suffix}"


def of(name: str) -> Callable[[Path], None]:
    return next(entry.make for entry in corpus() if entry.name == name)


def written(data: bytes) -> Callable[[Path], None]:
    return lambda path: (path.write_bytes(data), None)[1]


def large(path: Path) -> None:
    stills.save(path, Image.new("RGB", (1600, 960)))


CASES = [
    Case("media_too_few_frames", of("one_frame.mp4"), after="image"),
    Case("media_corrupt", of("lost_packet.ts"), suffix="ts"),
    Case("media_frame_count_wrong", of("counts_two_too_many.avi"), suffix="avi"),
    Case("media_frame_count_wrong", written(clips.recounted(clips.clip(), 500))),
    Case("media_size_changes", of("size_changes.webm"), suffix="webm"),
    Case("media_rotation_unsupported", of("tilted.mp4")),
    Case("media_aspect_extreme", of("sliver_pixels.mp4")),
    Case("media_aspect_extreme", of("strip.png"), kind="image", suffix="png"),
    Case("media_aspect_extreme", partial(clip, size=(160, 4)), limits={"max_aspect": 30.0}),
    Case("media_too_many_pixels", partial(clip, size=(1920, 1080), frames=2), limits={"max_frame_pixels": 1_000_000}),
    Case("media_too_many_pixels", partial(clip, size=(640, 480)), limits={"max_video_pixels": 2_500_000}),
    Case("media_too_many_pixels", large, kind="image", suffix="png", limits={"max_image_pixels": 1_000_000}),
    Case("media_too_long", partial(clip, frames=40, fps=40), limits={"max_frames": 20}),
    Case("media_too_long", partial(clip, frames=40), limits={"max_duration_s": 2.0}),
    Case("media_needs_conversion", of("pq.mp4"), limits={"max_normalise_pixels": 1000}),
    Case("media_type_unsupported", lambda path: Image.open(_bmp(path)).close(), kind="image", suffix="bmp"),
    Case("media_too_few_frames", partial(clip, frames=1, size=(161, 97), pixels="yuv444p"), after="image"),
]  # fmt: skip


def _bmp(path: Path) -> Path:
    stills.plain().save(path, "BMP")
    return path


def judged(path: Path, kind: str, limits: dict[str, Any], out: Path) -> dict[str, Any]:
    return answer({"path": str(path), "kind": kind, "out": str(out)}, MediaLimits(**limits), ReplicaDecoder())


def run(command: str, source: Path, folder: Path) -> Path:
    names = dict.fromkeys(re.findall(r"OUT(?:PUT)?\.\w+", command))
    for name in names:
        command = command.replace(name, str(folder / f"result{Path(name).suffix}"))
    command = re.sub(r"-i IN(?:PUT)?\b", f"-i {source}", command).replace("ffmpeg ", "ffmpeg -nostdin -y -v error ")
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-600:]
    return folder / f"result{Path(list(names)[-1]).suffix}"


@needs_ffmpeg
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_a_refusal_recommends_is_let_in(case: Case, tmp_path: Path) -> None:
    source, copy = tmp_path / f"source.{case.suffix}", tmp_path / "copy"
    case.make(source)
    refused = judged(source, case.kind, case.limits, copy)["refused"]
    assert refused["code"] == case.code
    commands = COMMAND.findall(refused["remedy"])
    assert commands, refused["remedy"]
    for command in commands:
        result = run(command, source, tmp_path)
        found = judged(result, case.after or case.kind, {**case.limits, "max_normalise_pixels": 10**9}, copy)
        assert "info" in found, (command, found)


@needs_ffmpeg
@pytest.mark.parametrize("name", ["bframes.mkv", "odd_size.mp4", "av1.webm", "alpha.mkv", "anamorphic.mp4"])
def test_the_general_command_makes_an_ordinary_clip_of_anything(name: str, tmp_path: Path) -> None:
    from cosmos3_serve.media.refusal import COMMAND as GENERAL

    source = tmp_path / name
    of(name)(source)
    result = run(GENERAL, source, tmp_path)
    assert "info" in judged(result, "video", {}, tmp_path / "copy")


@needs_ffmpeg
def test_a_matrix_without_a_conversion_here_and_hdr_with_other_primaries(tmp_path: Path) -> None:
    hdr, other = tmp_path / "hdr.mp4", tmp_path / "other.mp4"
    clip(hdr, "libx265", "yuv420p10le", color_trc=16, color_primaries=5, colorspace=9, color_range=1)
    clip(other, pixels="yuv444p", colorspace=8, frame=lambda made: made.reformat(format="yuv444p"))
    for source in (hdr, other):
        refused = judged(source, "video", {}, tmp_path / "copy")["refused"]
        assert refused["code"] == "media_colour_unsupported"
        for command in COMMAND.findall(refused["remedy"]):
            assert "info" in judged(run(command, source, tmp_path), "video", {}, tmp_path / "copy")


def test_every_recommended_command_is_one_of_those_tried() -> None:
    """By the words that the source's commands begin with: a new one wants a case above."""
    tried = {
        "-i INPUT OUTPUT.png", "-i INPUT -vf scale=1280:-2", "-i INPUT -vf pad=iw:iw/4", "-i INPUT -vf setsar=1",
        "-i INPUT -r 10", "-i INPUT -vf scale=1280:720", "-i INPUT -map 0:v:0", "-i INPUT -vf scale=-2:360",
        "-i INPUT -vf zscale", "-i INPUT -vf 'pad=ceil", "-i INPUT -frames:v 1", "-i INPUT -t",
        "-i INPUT -vf scale=-2:720",  # the same as 360, of a limit that needs gigabytes
        "-i IN -c:v libx264", "-framerate 2 -i FRAME",
    }  # fmt: skip
    found = set()
    for path in [*(SOURCE / "media").rglob("*.py"), *(SOURCE / "reasoner").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "ffmpeg -" in node.value:
                found |= {text.strip() for text in node.value.split("ffmpeg ")[1:]}
    found = {text for text in found if not text.startswith("-i OUTPUT")}
    assert len(found) > 10
    assert [text for text in found if not any(text.startswith(start) for start in tried)] == []
