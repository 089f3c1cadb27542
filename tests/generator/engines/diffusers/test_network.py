"""The split forward against the stock one, and attention that stays within its strand."""

import pytest
import torch
from support.engine import components

from cosmos3_serve.generator.engines.diffusers.attend import Controls, attend, attend_strand
from cosmos3_serve.generator.engines.diffusers.network import Network, Strand


@pytest.fixture(scope="module")
def network():
    parts = components()
    return Network(parts.transformer, parts.device, parts.temporal)


@pytest.fixture(autouse=True)
def no_grad():
    with torch.inference_mode():
        yield


def latents(seed: int, t: int = 2, h: int = 4, w: int = 6) -> torch.Tensor:
    return torch.randn(1, 48, t, h, w, generator=torch.Generator().manual_seed(seed))


def strand(network: Network, ids: list[int], x: torch.Tensor, noisy: torch.Tensor, timestep: int) -> Strand:
    prefix = network.prefill(ids)
    place = network.place(network.positions.vision(network.grid(x), network.positions.origin(len(ids)), 24.0))
    return Strand(network.embed_vision(x, noisy, timestep), place, prefix)


def stock(network: Network, ids: list[int], x: torch.Tensor, noisy: torch.Tensor, timestep: int) -> torch.Tensor:
    """The stock transformer's velocity for one sample, text and all."""
    n, (t, h, w) = len(ids), network.grid(x)
    frames = torch.nonzero(noisy).flatten()
    tokens = torch.arange(t * h * w).view(t, h * w)[frames].flatten() + n
    positions = torch.cat(
        [network.positions.text(n), network.positions.vision((t, h, w), network.positions.origin(n), 24.0)], dim=1
    )
    [velocity], _, _ = components().transformer(
        input_ids=torch.tensor(ids), text_indexes=torch.arange(n), position_ids=positions, und_len=n,
        sequence_length=n + t * h * w, vision_tokens=[x], vision_token_shapes=[(t, h, w)],
        vision_sequence_indexes=torch.arange(t * h * w) + n, vision_mse_loss_indexes=tokens,
        vision_timesteps=torch.full((len(tokens),), timestep), vision_noisy_frame_indexes=[frames], return_dict=False,
    )  # fmt: skip
    return velocity


@pytest.mark.parametrize("shape", [(1, 4, 4), (2, 4, 6), (3, 5, 7)])  # odd sides are padded to whole patches
@pytest.mark.parametrize("ids", [[5], list(range(300, 340))])
def test_split_forward_equals_the_stock_forward_at_every_step(network, shape, ids):
    x = latents(1, *shape)
    noisy = torch.ones(shape[0], dtype=torch.bool)
    noisy[0] = shape[0] == 1
    prefix = network.prefill(ids)  # once, for all steps
    for timestep in (999, 500, 3):
        own = strand(network, ids, x, noisy, timestep)
        [rows] = network.forward([Strand(own.rows, own.place, prefix)])
        ours = network.vision_velocity(rows, x, noisy)
        theirs = stock(network, ids, x, noisy, timestep)
        assert torch.allclose(ours, theirs, atol=2e-6 * theirs.abs().max().item()), (ours - theirs).abs().max()
        assert not ours[:, :, ~noisy].any()


def test_strands_of_a_block_do_not_see_each_other(network):
    noisy = torch.ones(2, dtype=torch.bool)
    mine = strand(network, [7, 8, 9], latents(1), noisy, 700)
    [alone] = network.forward([mine])
    for neighbour in (latents(2), latents(3, 1, 8, 8) * 100):
        mask = torch.ones(neighbour.shape[2], dtype=torch.bool)
        other = strand(network, [4] * 20, neighbour, mask, 700)
        before, _ = network.forward([mine, other])
        _, after = network.forward([other, mine])
        for together in (before, after):
            assert torch.allclose(together, alone, atol=1e-5 * alone.abs().max().item())


def test_timestep_reaches_noisy_frames_only(network):
    x, noisy = latents(1), torch.tensor([False, True])
    early, late = (network.embed_vision(x, noisy, t) for t in (900, 100))
    tokens = early.shape[0] // 2
    assert torch.equal(early[:tokens], late[:tokens])
    assert not torch.allclose(early[tokens:], late[tokens:])


def heads(n: int, count: int, seed: int) -> torch.Tensor:
    return torch.randn(n, count, 16, generator=torch.Generator().manual_seed(seed))


def test_one_control_is_plain_attention():
    q, k, v = heads(10, 4, 1), heads(10, 2, 2), heads(10, 2, 3)
    text = heads(5, 2, 4), heads(5, 2, 5)
    plain = attend(q, torch.cat([text[0], k]), torch.cat([text[1], v]))
    assert torch.equal(attend_strand(q, k, v, text, Controls((4,), (1.0,))), plain)
    assert torch.equal(attend_strand(q, k, v, text, None), plain)


def test_a_control_of_weight_zero_is_as_if_absent():
    q, k, v = heads(14, 4, 1), heads(14, 2, 2), heads(14, 2, 3)
    text = heads(5, 2, 4), heads(5, 2, 5)
    both = attend_strand(q, k, v, text, Controls((4, 4), (0.0, 1.0)))
    alone = attend_strand(q[4:], k[4:], v[4:], text, Controls((4,), (1.0,)))
    assert torch.allclose(both[4:], alone, atol=1e-6)


def test_weights_mix_what_the_target_sees():
    q, k, v = heads(14, 4, 1), heads(14, 2, 2), heads(14, 2, 3)
    text = heads(5, 2, 4), heads(5, 2, 5)
    first, second = (attend_strand(q, k, v, text, Controls((4, 4), w))[8:] for w in ((1.0, 0.0), (0.0, 1.0)))
    mixed = attend_strand(q, k, v, text, Controls((4, 4), (0.25, 0.75)))[8:]
    assert torch.allclose(mixed, 0.25 * first + 0.75 * second, atol=1e-6)
    assert not torch.allclose(first, second, atol=1e-3)
