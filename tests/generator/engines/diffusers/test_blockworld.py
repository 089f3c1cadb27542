"""Quality gates of the engine on a CPU: whichever way samples go through it, they show what they were asked for.

The plain path is each sample alone, one thread, a fresh engine. Every other path may lose one sample of the twelve
pictures, and one of the eight samples of mixed waves; on one machine most give the same bytes. A gate that cannot fail
is none: two samples of a wave that are swapped, rows of a step, two prompts, and two clips fail it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support import gate
from support.gate import Asked, Gate, Verdicts, in_waves, prompts, swapped, two_right

from cosmos3_serve.generator.engines.diffusers import engine as module
from cosmos3_serve.generator.engines.diffusers import wave
from cosmos3_serve.generator.engines.diffusers.engine import DiffusersEngine
from cosmos3_serve.generator.engines.diffusers.loader import load_components
from cosmos3_serve.weights.checkpoint import resolve_checkpoint

PICTURES = prompts(12, moving=False, seed=7)
CLIPS = prompts(4, moving=True, seed=7)
GATE = Gate(lost=1, floor=0.5)
WAVE = 4


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blockworld")


@pytest.fixture(scope="module", autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Engines:
    """Engines over one loaded checkpoint; each is fresh but for that."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._checkpoint = resolve_checkpoint("blockworld", root)
        self._parts = load_components(self._checkpoint.path, torch.device("cpu"))
        self._count = 0

    def new(self, **options: Any) -> DiffusersEngine:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "load_components", lambda path, device: self._parts)
            given = {"threads": 1, "guardrails": None, "device": "cpu", **options}
            return DiffusersEngine(self._checkpoint, output_root=self.root, **given)

    def run(self, engine: DiffusersEngine, asked: Mapping[str, Asked], size: int = WAVE) -> Verdicts:
        self._count += 1
        return in_waves(engine, self.root, f"run-{self._count}", asked, size)


@pytest.fixture(scope="module")
def engines(root: Path) -> Engines:
    return Engines(root)


@pytest.fixture(scope="module")
def pictures(engines: Engines) -> Verdicts:
    """The plain path's score of pictures."""
    return engines.run(engines.new(packing="sample"), PICTURES, 1)


@pytest.fixture(scope="module")
def clips(engines: Engines) -> Verdicts:
    return engines.run(engines.new(packing="sample"), CLIPS, 1)


PATHS: dict[str, dict[str, Any]] = {
    "in waves, each multiplied separately": {"packing": "sample"},
    "in waves, packed where that changes no bit": {"packing": "proven"},
    "in packed waves, come what may": {"packing": "wave"},
    "two threads": {"threads": 2},
    "three threads, packed": {"threads": 3, "packing": "wave"},
}


@pytest.mark.parametrize("path", PATHS)
def test_a_path_keeps_the_score_of_pictures(engines: Engines, pictures: Verdicts, path: str) -> None:
    GATE.check(pictures, engines.run(engines.new(**PATHS[path]), PICTURES))


def test_a_warm_engine_keeps_the_score_of_a_cold_one(engines: Engines, pictures: Verdicts) -> None:
    engine = engines.new()
    engines.run(engine, dict(list(PICTURES.items())[WAVE - 1 :: -1]))
    GATE.check(pictures, engines.run(engine, PICTURES))


def test_pictures_and_clips_in_one_wave_keep_their_score(engines: Engines, pictures: Verdicts, clips: Verdicts) -> None:
    names = [name for pair in zip(CLIPS, PICTURES, strict=False) for name in pair]
    plain = {name: {**pictures, **clips}[name] for name in names}
    asked = {name: {**PICTURES, **CLIPS}[name] for name in names}
    GATE.check(plain, engines.run(engines.new(packing="wave"), asked))


# ---- what a gate must see -------------------------------------------------------------------------------------------


def mistaken(engines: Engines, plain: Verdicts, asked: Mapping[str, Asked], pair: tuple[str, str]) -> Verdicts:
    """The score when the two of a pair go through the engine in one wave, as a defect leaves them."""
    wave = {name: asked[name] for name in pair}
    return {**plain, **engines.run(engines.new(), wave)}


def test_two_samples_of_a_wave_that_are_swapped_fail_it(
    engines: Engines, pictures: Verdicts, monkeypatch: pytest.MonkeyPatch
) -> None:
    denoise = wave.Wave.denoise

    def mixed_up(self: wave.Wave, jobs: Any) -> list[wave.Seat]:
        one, other = denoise(self, jobs)
        one.latents, other.latents = other.latents, one.latents
        return [one, other]

    monkeypatch.setattr(wave.Wave, "denoise", mixed_up)
    pair = two_right(pictures)
    with pytest.raises(AssertionError, match=f"wrong here: .*{pair[0]}"):
        GATE.check(pictures, mistaken(engines, pictures, PICTURES, pair))


def test_rows_of_a_packed_step_that_are_swapped_fail_it(
    engines: Engines, pictures: Verdicts, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = wave.together
    monkeypatch.setattr(wave, "together", lambda forward, strands: together(forward, strands)[::-1])
    pair = two_right(pictures)
    found = engines.run(engines.new(packing="wave"), {name: PICTURES[name] for name in pair})
    with pytest.raises(AssertionError, match="wrong here"):
        GATE.check(pictures, {**pictures, **found})


def test_two_prompts_that_are_swapped_fail_it(engines: Engines, pictures: Verdicts) -> None:
    pair = two_right(pictures)
    with pytest.raises(AssertionError, match=f"wrong here: .*{pair[0]}"):
        GATE.check(pictures, mistaken(engines, pictures, swapped(PICTURES, pair), pair))


def test_two_clips_of_a_wave_that_are_swapped_fail_it(engines: Engines, clips: Verdicts) -> None:
    pair = two_right(clips)
    with pytest.raises(AssertionError, match="wrong here"):
        GATE.check(clips, mistaken(engines, clips, swapped(CLIPS, pair), pair))


def test_a_plain_path_that_is_hardly_ever_right_is_no_measure(pictures: Verdicts) -> None:
    with pytest.raises(AssertionError, match="the plain path itself"):
        GATE.check(dict.fromkeys(pictures, False), dict.fromkeys(pictures, False))
    assert gate.looked_for(PICTURES["picture-0"].scene) != gate.looked_for(PICTURES["picture-1"].scene)
