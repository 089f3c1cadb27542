"""The corpus through the reasoner's gate: what its replicas' own decoder makes of what the gate lets through is right,
or the file is refused."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.corpus import opencv
from support.corpus.entry import Entry
from support.corpus.files import corpus
from support.corpus.paint import near, number_of, patches_of

from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.replica import ReplicaDecoder
from cosmos3_serve.reasoner.media.worker import answer

CORPUS = corpus()
SEEN = [entry for entry in CORPUS if not entry.refused and not entry.reasoner]
VLLM = Path(__file__).parents[3] / ".venv-vllm" / "bin" / "python"
Found = dict[str, dict[str, Any]]


def named(entry: Entry) -> str:
    return entry.name


def judged(entry: Entry, folder: Path) -> tuple[dict[str, Any], Path]:
    """The gate's answer, and what a replica would get."""
    source, out = folder / entry.name, folder / f"{entry.name}.copy"
    entry.make(source)
    found = answer({"path": str(source), "kind": entry.kind, "out": str(out)}, MediaLimits(), ReplicaDecoder())
    return found, out if found.get("served") else source


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    """By entry: the gate's answer, and the frames and rate that OpenCV gives of what a replica gets."""
    if not VLLM.is_file():
        pytest.skip("the interpreter of vLLM, with OpenCV, is not installed: make setup-reasoner")
    folder = tmp_path_factory.mktemp("corpus")
    results: Found = {}
    paths: list[str] = []
    for entry in SEEN:
        found, served = judged(entry, folder)
        results[entry.name] = {"answer": found}
        plain = folder / f"{len(paths)}.{'image' if entry.kind == 'image' else 'video'}"
        plain.hardlink_to(served)
        paths.append(str(plain))
    out = folder / "seen.npz"
    subprocess.run([str(VLLM), opencv.__file__, str(out), *paths], check=True, timeout=600, capture_output=True)
    with np.load(out) as decoded:
        for number, entry in enumerate(SEEN):
            results[entry.name] |= {"frames": decoded[f"frames{number}"], "fps": float(decoded[f"fps{number}"])}
    yield results


@pytest.mark.parametrize("entry", SEEN, ids=named)
def test_replicas_see_the_right_pictures_at_the_right_times(entry: Entry, seen: Found) -> None:
    found = seen[entry.name]
    said, frames = found["answer"], found["frames"]
    assert "info" in said, said
    if entry.copied is not None:
        assert (said["served"] is not None) == entry.copied, said["served"]
    served = said["served"] or said["info"]
    if entry.kind == "video":
        assert abs(len(frames) - served["frames"]) <= 1
    width, height = entry.size
    assert abs(frames.shape[2] - width) <= 1 and abs(frames.shape[1] - height) <= 1
    for index, frame in enumerate(frames):
        # A replica stamps a frame with its index over the rate: it must be the one shown about then.
        time = index / served["fps"] if entry.kind == "video" else 0.0
        assert number_of(frame) in shown_around(entry, time), (index, time)
    for frame in (frames[0], frames[-1]):
        left, right = patches_of(frame)
        assert near(left, entry.left, entry.by + 4) and near(right, entry.right, entry.by + 4), (left, right)


def shown_around(entry: Entry, time: float) -> set[int]:
    """Numbers of the frames that a player shows around `time`; before the first one, the first."""
    even = 1.01 / entry.fps if entry.times_s is None else MediaLimits().drift_s
    times = [entry.start_s + at for at in entry.times]
    near_it = {number for at, number in zip(times, entry.numbers, strict=True) if abs(at - time) <= even}
    before = [number for at, number in zip(times, entry.numbers, strict=True) if at <= time + 0.001]
    return near_it | {before[-1] if before else entry.numbers[0]}


@pytest.mark.parametrize("entry", [entry for entry in CORPUS if entry.refused or entry.reasoner], ids=named)
def test_the_same_files_are_refused_as_by_the_generator(entry: Entry, tmp_path: Path) -> None:
    found, _ = judged(entry, tmp_path)
    refused = found.get("refused")
    assert refused is not None, found
    assert refused["code"] in (entry.refused or (entry.reasoner,)) and refused["remedy"] and refused["status"] >= 400
    assert str(tmp_path) not in str(refused)
