"""The flow schedule: the framework's sigmas, and state of its own for each sample."""

import numpy as np
import pytest
import torch

from cosmos3_serve.generator.engines.diffusers.schedule import flow_scheduler, step

CPU = torch.device("cpu")


@pytest.mark.parametrize("shift", [1.0, 3.0, 5.0, 10.0])
@pytest.mark.parametrize("steps", [1, 4, 35, 50])
def test_sigmas_are_the_shifted_flow(shift, steps):
    scheduler = flow_scheduler(shift, steps, CPU)
    plain = np.linspace(1 - 1 / 1000, 0, steps + 1)[:-1]
    shifted = shift * plain / (1 + (shift - 1) * plain)
    assert np.allclose(scheduler.sigmas[:-1].numpy(), shifted, atol=6e-8)
    assert scheduler.sigmas[-1] == 0
    assert scheduler.timesteps.tolist() == [int(s * 1000) for s in shifted]


@pytest.mark.parametrize("steps", [1, 3, 600])
def test_the_true_velocity_leads_to_the_target(steps):
    """600 steps repeat whole timesteps; a lookup by value would lose its place."""
    scheduler = flow_scheduler(10.0, steps, CPU)
    noise, target = torch.randn(2, 1, 4, 2, 3, 3, generator=torch.Generator().manual_seed(0)).unbind()
    x = noise
    first = float(scheduler.sigmas[0])
    x = first * noise + (1 - first) * target
    for timestep in scheduler.timesteps:
        x = step(scheduler, noise - target, timestep, x)
    assert torch.allclose(x, target, atol=1e-4)


def test_two_schedulers_share_nothing():
    def solve(scheduler, others=()):
        x = torch.ones(1, 2, 1, 2, 2)
        for timestep in scheduler.timesteps:
            for other in others:
                step(other, torch.randn(3), timestep, torch.randn(3))
            x = step(scheduler, x * 0.3, timestep, x)
        return x

    assert torch.equal(
        solve(flow_scheduler(3.0, 5, CPU)), solve(flow_scheduler(3.0, 5, CPU), [flow_scheduler(3.0, 5, CPU)])
    )
