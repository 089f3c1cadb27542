"""Token positions against diffusers' own builders."""

from types import SimpleNamespace

import pytest
import torch

from cosmos3_serve.generator.engines.diffusers.positions import Positions


def config(fractional: bool = True, reset: bool = True) -> SimpleNamespace:
    return SimpleNamespace(
        enable_fps_modulation=fractional,
        unified_3d_mrope_temporal_modality_margin=15000,
        unified_3d_mrope_reset_spatial_ids=reset,
        base_fps=24,
    )


@pytest.mark.parametrize("fractional", [True, False])
@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("fps", [10, 24, 29.97])
@pytest.mark.parametrize("grid", [(1, 8, 8), (2, 3, 5), (7, 6, 10)])
def test_vision(fractional, reset, fps, grid):
    from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import get_3d_mrope_ids_vae_tokens

    ours = Positions(config(fractional, reset), 4)
    theirs, after = get_3d_mrope_ids_vae_tokens(
        *grid, temporal_offset=15031, reset_spatial_indices=reset, fps=fps if fractional else None, base_fps=24.0
    )
    found = ours.vision(grid, 15031, fps)
    assert torch.equal(found, theirs.float())
    assert ours.after(found) == after


@pytest.mark.parametrize("fps", [10, 24])
@pytest.mark.parametrize("count", [1, 4, 16])
def test_action(fps, count):
    from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import get_3d_mrope_ids_vae_tokens

    theirs, _ = get_3d_mrope_ids_vae_tokens(
        count, 1, 1, temporal_offset=15031, fps=fps, base_fps=24.0, temporal_compression_factor=1,
        base_temporal_compression_factor=4, start_frame_offset=1,
    )  # fmt: skip
    assert torch.equal(Positions(config(), 4).action(count, 15031, fps), theirs.float())


def test_text_counts_up_and_media_start_behind_the_margin():
    positions = Positions(config(), 4)
    assert torch.equal(positions.text(3), torch.tensor([[0.0, 1, 2]] * 3))
    assert positions.origin(31) == 15031


def test_an_action_lies_at_the_frame_it_leads_to():
    positions = Positions(config(), 4)
    frames = positions.vision((3, 1, 1), 100, 24)[0]  # pixel frames 0, 4, 8
    actions = positions.action(8, 100, 24)[0]  # pixel frames 1 to 8
    assert actions[3] == frames[1] and actions[7] == frames[2]
