"""What the framework gets of a sample's files: the original, a clean copy, or nothing where the file is not sound."""

from pathlib import Path
from typing import Any

import pytest
from support.corpus.files import corpus
from support.corpus.paint import near, number_of, patches_of

from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.engines.framework.inputs import FOLDER, clean_inputs
from cosmos3_serve.generator.engines.inputs import Wanted
from cosmos3_serve.generator.engines.job import EngineJob


def job(folder: Path, **args: Any) -> EngineJob:
    return EngineJob(request_id="r", name="a", output_dir=str(folder / "out"), args=args)


def made(folder: Path, name: str) -> str:
    next(entry for entry in corpus() if entry.name == name).make(folder / name)
    return str(folder / name)


@pytest.mark.parametrize("name", ["h264.mp4", "plain.png", "bt709.mp4"])
def test_what_any_reader_gets_right_is_handed_on(name: str, tmp_path: Path) -> None:
    path = made(tmp_path, name)
    with clean_inputs(job(tmp_path, vision_path=path)) as inputs:
        assert inputs.args == {"vision_path": path} and inputs.media["vision_path"]["width"] == 160
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "size", "right"),
    [
        ("anamorphic.mp4", (228, 96), (40, 120, 200)),
        ("default_second.mkv", (160, 96), (40, 120, 200)),
        ("turned_90.mp4", (160, 96), (40, 120, 200)),
        ("grey16.png", (160, 96), (192, 192, 192)),
        ("see_through.png", (160, 96), (255, 255, 255)),
    ],
)
def test_what_a_plain_reader_gets_wrong_is_copied(name: str, size: Any, right: Any, tmp_path: Path) -> None:
    path = made(tmp_path, name)
    with clean_inputs(job(tmp_path, edge={"control_path": path, "weight": 1.0})) as inputs:
        copy = inputs.args["edge"]["control_path"]
        assert copy != path and inputs.args["edge"]["weight"] == 1.0
        shown = Wanted(copy, "x").read()
        assert (shown.record.width, shown.record.height) == size and not shown.record.conversions
        assert number_of(shown.frames[0]) == (5 if name.endswith(".png") else 0)
        assert near(patches_of(shown.frames[0])[1], right, 12)
        assert inputs.named({"args": {"edge": [copy]}}) == {"args": {"edge": [path]}}
    assert not (tmp_path / "out" / FOLDER).exists()


def test_a_damaged_file_is_refused_before_the_framework_sees_it(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=r"^vision_path: .*cut off") as caught:
        clean_inputs(job(tmp_path, vision_path=made(tmp_path, "cut_half.mp4"))).__enter__()
    assert caught.value.sample_code is SampleCode.INPUT_INVALID
