"""Hashing: which files count as a sample's output (the rest of `verify` is tested through the coordinator)."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from cosmos3_serve.contract.profile import FRAMEWORK_PROFILE
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.errors import SampleError
from cosmos3_serve.generator.queue.hashing import open_below, verify


def resolved(**fields: Any) -> ResolvedSample:
    sample = SampleOverrides.model_validate({"name": "a", "prompt": "x", **fields})
    return resolve_sample(sample, FRAMEWORK_PROFILE, seed=5)


def outputs(sample: ResolvedSample, *files: str, **args: Any) -> dict[str, Any]:
    return {
        "args": {**sample.model_dump(mode="json"), **args},
        "outputs": [{"content": {}, "files": [f"r/a/{f}" for f in files]}],
    }


def made(root: Path, *files: str) -> None:
    for file in files:
        path = root / "r" / "a" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.encode())


@pytest.mark.parametrize(
    ("fields", "owed"),
    [
        ({"model_mode": "text2image"}, ["vision.jpg"]),
        ({"model_mode": "text2video", "num_frames": 5}, ["vision.mp4"]),
        ({"model_mode": "reasoner"}, ["reasoner_text.txt"]),
        (
            {
                "model_mode": "text2video",
                "edge": {"control_path": "s3://b/e.mp4"},
                "seg": {"control_path": "s3://b/s.mp4"},
            },
            ["vision.mp4", "control_edge.mp4", "control_seg.mp4"],
        ),
    ],
)
def test_each_mode_owes_its_files(tmp_path: Path, fields: dict[str, Any], owed: list[str]) -> None:
    sample = resolved(**fields)
    made(tmp_path, *owed, "output.safetensors")
    files = ["output.safetensors", *owed]
    _, artifacts = verify(tmp_path, "r", sample, 5, outputs(sample, *files))
    assert [a["path"] for a in artifacts] == [f"r/a/{f}" for f in files]
    assert artifacts[-1]["sha256"] == hashlib.sha256(owed[-1].encode()).hexdigest()
    for missing in owed:
        rest = [f for f in files if f != missing]
        with pytest.raises(SampleError, match=missing):
            verify(tmp_path, "r", sample, 5, outputs(sample, *rest))


@pytest.mark.parametrize("frames", [0, 5, True, "1", None])
def test_an_image_is_one_frame(tmp_path: Path, frames: Any) -> None:
    sample = resolved(model_mode="text2image")
    made(tmp_path, "vision.jpg")
    with pytest.raises(SampleError, match="num_frames"):
        verify(tmp_path, "r", sample, 5, outputs(sample, "vision.jpg", num_frames=frames))


def test_links_pipes_and_directories_are_not_opened(tmp_path: Path) -> None:
    made(tmp_path, "vision.jpg")
    home = tmp_path / "r" / "a"
    (home / "link").symlink_to(home / "vision.jpg")
    os.mkfifo(home / "pipe")
    (home / "folder").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "r")
    for path in ("r/a/link", "r/a/pipe", "r/a/folder", "linked/a/vision.jpg", "r/a/none", "r/a/vision.jpg/x"):
        assert open_below(tmp_path, path) is None, path
    descriptor = open_below(tmp_path, "r/a/vision.jpg")
    assert descriptor is not None
    os.close(descriptor)


def test_no_descriptor_is_lost(tmp_path: Path) -> None:
    made(tmp_path, "vision.jpg")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(50):
        open_below(tmp_path, "r/a/none/x")
        open_below(tmp_path, "r/none/x")
        descriptor = open_below(tmp_path, "r/a/vision.jpg")
        assert descriptor is not None
        os.close(descriptor)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
