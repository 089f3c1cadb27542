"""Guidance by its formula, with a scripted network: which branches run at a timestep, and how they combine."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.engine import make_job

from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.generator.engines.diffusers.attend import Controls
from cosmos3_serve.generator.engines.diffusers.condition import Action, Start
from cosmos3_serve.generator.engines.diffusers.denoising import Denoising, Prompts
from cosmos3_serve.generator.engines.diffusers.network import Place, Prefix
from cosmos3_serve.generator.engines.diffusers.positions import Positions

CONFIG = SimpleNamespace(
    enable_fps_modulation=True, unified_3d_mrope_temporal_modality_margin=10, unified_3d_mrope_reset_spatial_ids=True,
    base_fps=24,
)  # fmt: skip


class Script:
    """A network whose velocity is whatever the rows say; rows are [n, 1]."""

    positions = Positions(CONFIG, 4)  # type: ignore[arg-type]

    def grid(self, latents: Any) -> tuple[int, int, int]:
        return latents.shape[2], 1, 1

    def place(self, positions: Any) -> Place:
        return Place(positions, positions)

    def embed_vision(self, latents: Any, noisy: Any, timestep: int) -> Any:
        return torch.zeros(latents.shape[2], 1)

    def embed_action(self, actions: Any, noisy: Any, timestep: int, domain: Any) -> Any:
        return torch.zeros(actions.shape[0], 1)

    def vision_velocity(self, rows: Any, latents: Any, noisy: Any) -> Any:
        return rows.view(1, 1, -1, 1, 1) * noisy.view(1, 1, -1, 1, 1)

    def action_velocity(self, rows: Any, noisy: Any, domain: Any) -> Any:
        return rows.expand(-1, 3).clone()


def denoising(root: Any, *, controls: int = 0, action: bool = False, **changes: Any) -> Denoising:
    args = {**make_job(root, "x", prompt="x", num_steps=4).args, "guidance": 1.0, "shift": 1.0, **changes}
    sample = ResolvedSample.model_validate(args)
    start = Start(torch.ones(1, 1, 2, 1, 1), torch.tensor([True, True]), 24.0)
    if controls:
        start.controls = (torch.ones(1, 1, 2, 1, 1),) * controls
        start.weights = Controls((2,) * controls, (1 / controls,) * controls)
    if action:
        start.action = Action(torch.ones(3, 3), torch.ones(3, dtype=torch.bool), torch.tensor([1]), 2)
    negative = Prefix((), 3) if sample.guidance != 1.0 else None
    return Denoising(Script(), sample, start, Prompts(Prefix((), 5), negative), torch.device("cpu"))  # type: ignore[arg-type]


def velocity(run: Denoising, **rows: float) -> torch.Tensor:
    """The combined velocity when each branch predicts the given number."""
    parts = {name: (torch.full((1, 1, 2, 1, 1), value), None) for name, value in rows.items()}
    return run._guided(parts)[0].flatten()[0]  # type: ignore[arg-type]


def test_without_guidance_there_is_one_branch(root):
    run = denoising(root)
    assert len(run.strands()) == 1
    assert velocity(run, positive=2.0) == 2.0


def test_text_guidance(root):
    run = denoising(root, guidance=3.0)
    assert [s.prefix.length for s in run.strands()] == [5, 3]
    assert velocity(run, positive=2.0, negative=1.0) == 1 + 3 * (2 - 1)


def test_control_guidance(root):
    run = denoising(root, controls=2, control_guidance=2.0)
    strands = run.strands()
    assert [s.rows.shape[0] for s in strands] == [6, 2]  # with two controls and without
    assert [s.controls is None for s in strands] == [False, True]
    assert velocity(run, positive=3.0, uncontrolled=1.0) == 1 + 2 * (3 - 1)


def test_nested_guidance(root):
    run = denoising(root, controls=1, control_guidance=2.0, guidance=3.0)
    assert len(run.strands()) == 3
    assert velocity(run, positive=3.0, negative=1.0, uncontrolled=2.0) == 1 + 3 * ((2 + 2 * (3 - 2)) - 1)


def test_control_guidance_of_one_saves_its_branch(root):
    assert len(denoising(root, controls=1, control_guidance=1.0).strands()) == 1


@pytest.mark.parametrize(
    "interval, branches", [(None, 2), ([0, 1000], 2), ([0, 999], 1), ([0, 500], 1), ([998, 1000], 2)]
)
def test_guidance_acts_strictly_within_its_interval(root, interval, branches):
    run = denoising(root, guidance=3.0, guidance_interval=interval)  # the first timestep is 999
    assert len(run.strands()) == branches


def test_control_guidance_acts_within_its_own_interval(root):
    run = denoising(root, controls=1, guidance=3.0, control_guidance=2.0, control_guidance_interval=[0, 500])
    asked = []
    for _ in range(4):
        rows = [strand.rows for strand in run.strands()]
        asked.append(len(rows))
        run.advance(rows)
    assert asked == [2, 2, 3, 3]  # at 999, 749, 499, 249
    assert run.done


def test_normalized_guidance_never_exceeds_the_conditional_norm(root):
    run = denoising(root, guidance=3.0, normalize_cfg=True)
    assert velocity(run, positive=2.0, negative=1.0) == pytest.approx(2.0)
    assert velocity(run, positive=2.0, negative=2.5) == pytest.approx(2.5 + 3 * -0.5)  # smaller: left as it is


def test_rows_of_controls_target_and_action_find_their_places(root):
    run = denoising(root, controls=1, control_guidance=2.0)
    vision, _ = run._velocity(torch.tensor([[9.0], [9.0], [1.0], [2.0]]), run._branches["positive"])
    assert vision.flatten().tolist() == [1.0, 2.0]
    run = denoising(root, action=True)
    vision, action = run._velocity(torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]]), run._branches["positive"])
    assert vision.flatten().tolist() == [1.0, 2.0]
    assert action is not None and action.tolist() == [[3, 3, 0], [4, 4, 0], [5, 5, 0]]  # the third number is padding


def test_fixed_frames_stay_to_the_bit(root):
    run = denoising(root, shift=7.0)
    run.start.noisy = torch.tensor([False, True])
    run.latents = run._clean = torch.randn(1, 64, 2, 1, 1, generator=torch.Generator().manual_seed(0))
    for _ in range(4):
        run.strands()
        run.advance([torch.full((2, 1), 0.7)])
    assert torch.equal(run.latents[:, :, 0], run._clean[:, :, 0])
    assert not torch.equal(run.latents[:, :, 1], run._clean[:, :, 1])


def test_separate_times_put_the_target_behind_its_controls(root):
    shared = denoising(root, controls=1).strands()[0].place.cos[0]
    run = denoising(root, controls=1)
    run.start.share_time = False
    separate = run._branch(Prefix((), 5), True).place.cos[0]
    assert shared.tolist() == [15, 16, 15, 16]
    assert separate.tolist() == [15, 16, 17, 18]
