"""Quality gates on a GPU: recorded steps and waves of the generator, FP8 of the reasoner, against their plain paths.

Kernels differ with the shape of a wave there, so a picture near the limit of what the measures see may fall on either
side: a wave may lose five of 48 pictures and two of 16 clips. A recorded step does what the step itself does, in the
same company, and may lose one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.fleet import need_engine
from support.gate import Asked, Gate, Verdicts, in_waves, prompts
from support.question_gate import ONE_REPLICA, plainly, questions
from support.real_fleet import RealFleet
from support.service import shared_cache

from cosmos3_serve.generator.engines.diffusers.engine import DiffusersEngine
from cosmos3_serve.weights.checkpoint import resolve_checkpoint

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SETS = {"pictures": prompts(48, moving=False, seed=8), "clips": prompts(16, moving=True, seed=8)}
RECORDED = Gate(lost=1)
WAVES = {"pictures": Gate(lost=5), "clips": Gate(lost=2)}
FP8 = Gate(lost=3, floor=0.75)


class Engine:
    """One engine, its steps recorded or not."""

    def __init__(self, root: Path) -> None:
        self._root, self._runs = root, 0
        self._known: dict[tuple[str, int, bool], Verdicts] = {}
        self.engine = DiffusersEngine(
            resolve_checkpoint("blockworld", root), output_root=root, max_num_seqs=8, device="cuda", guardrails=None
        )

    def score(self, which: str, size: int, *, recorded: bool) -> Verdicts:
        key = which, size, recorded
        if key not in self._known:
            self._known[key] = self._run(SETS[which], size, recorded)
        return self._known[key]

    def _run(self, asked: Mapping[str, Asked], size: int, recorded: bool) -> Verdicts:
        self._runs += 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.engine, "_replays", recorded)
            return in_waves(self.engine, self._root, f"run-{self._runs}", asked, size)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(tmp_path_factory.mktemp("outputs").resolve())


@pytest.mark.parametrize("which", SETS)
@pytest.mark.parametrize("size", [1, 8])
def test_recorded_steps_keep_the_score(engine: Engine, which: str, size: int) -> None:
    RECORDED.check(engine.score(which, size, recorded=False), engine.score(which, size, recorded=True))


@pytest.mark.parametrize("which", SETS)
def test_waves_keep_the_score(engine: Engine, which: str) -> None:
    WAVES[which].check(engine.score(which, 1, recorded=False), engine.score(which, 8, recorded=True))


@pytest.mark.parametrize("which", SETS)
def test_waves_that_are_mixed_up_fail_it(engine: Engine, which: str) -> None:
    """Each sample has its neighbour's prompt, as if slots were off by one."""
    asked = SETS[which]
    after = [*list(asked)[1:], next(iter(asked))]
    shifted = {n: Asked(asked[n].scene, asked[other].prompt) for n, other in zip(asked, after, strict=True)}
    with pytest.raises(AssertionError, match="wrong here"):
        WAVES[which].check(engine.score(which, 1, recorded=False), engine._run(shifted, 8, True))


def test_fp8_keeps_the_score_of_bf16(tmp_path_factory: pytest.TempPathFactory) -> None:
    need_engine()
    asked = questions(tmp_path_factory.mktemp("clips"), clips=48)
    found: dict[str, dict[str, bool]] = {}
    for precision in ("bf16", "fp8"):
        env = {**ONE_REPLICA, "COSMOS3_REASONER_PRECISION": precision}
        with RealFleet(shared_cache(tmp_path_factory), tmp_path_factory.mktemp("tokens") / "tokens", **env) as fleet:
            assert fleet.replicas[0]["engine"]["precision"] == precision
            found[precision] = asyncio.run(plainly(fleet, asked, width=16)).verdicts
    FP8.check(found["bf16"], found["fp8"])
