"""What a sample's media fix: frames, canvases, embodiments; and every contradiction refused by field."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.engine import make_job
from support.media import frames

from cosmos3_serve.contract.media import SIZES
from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.engines.actions import DOMAIN_IDS
from cosmos3_serve.generator.engines.diffusers.condition import _fit
from cosmos3_serve.generator.engines.inputs import Wanted

ACTION = {"domain_name": "bridge_orig_lerobot", "action_chunk_size": 4, "prompt": "x"}


@pytest.fixture(scope="module")
def conditioner(engine):
    return engine._tools.conditioner


def sample(root: Any, changes: dict[str, Any] | None = None, **fields: Any) -> ResolvedSample:
    args = make_job(root, "x", **fields).args
    return ResolvedSample.model_validate({**args, **(changes or {})})


def refused(call: Any, *args: Any) -> str:
    with torch.inference_mode(), pytest.raises(SampleError) as caught:
        call(*args)
    assert caught.value.sample_code is SampleCode.INPUT_INVALID
    return caught.value.detail


@pytest.mark.parametrize("indexes", [[0], [1], [0, 1], [1, 0, 1]])
def test_named_latent_frames_are_fixed_and_the_rest_is_noise(conditioner, root, files, indexes):
    clip = sample(
        root, {"condition_frame_indexes_vision": indexes}, prompt="x", vision_path=files["clip.mp4"], num_frames=9
    )
    with torch.inference_mode():
        start = conditioner.vision(clip, 1)
        free = conditioner.vision(sample(root, prompt="x", model_mode="text2video", num_frames=9), 1)
        pixels = Wanted(files["clip.mp4"], "x", size=(320, 192), max_frames=4 * max(indexes) + 1).read()
        encoded = conditioner.encode(pixels.frames, 9)
    assert [i for i in range(3) if not start.noisy[i]] == sorted(set(indexes))
    assert torch.equal(start.latents[:, :, ~start.noisy], encoded[:, :, ~start.noisy])
    assert torch.equal(start.latents[:, :, start.noisy], free.latents[:, :, start.noisy])
    assert free.noisy.all()


@pytest.mark.parametrize("indexes, says", [([], "is empty"), ([3], "3 lies outside the 3"), ([-1], "-1 lies outside")])
def test_impossible_frames_are_refused(conditioner, root, files, indexes, says):
    clip = sample(
        root, {"condition_frame_indexes_vision": indexes}, prompt="x", vision_path=files["clip.mp4"], num_frames=9
    )
    assert says in refused(conditioner.vision, clip, 1)


def test_a_short_clip_stands_still_after_its_end(conditioner):
    clip = frames(3)
    with torch.inference_mode():
        short = conditioner.encode(clip, 5)
        filled = conditioner.encode(np.concatenate([clip, clip[-1:], clip[-1:]]), 5)
    assert torch.equal(short, filled)


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63) + 1])
def test_any_64_bit_seed(conditioner, seed):
    assert conditioner.generator(seed).initial_seed() in (seed, seed + 2**64)


# ---- action ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width, height", [(320, 192), (640, 480), (100, 400), (64, 32), (255, 256), (40, 300)])
@pytest.mark.parametrize("tier", [256, 480])
def test_canvas_and_padding_are_those_of_diffusers(width, height, tier):
    from diffusers import Cosmos3OmniPipeline
    from diffusers.video_processor import VideoProcessor

    class Pipe:
        video_processor = VideoProcessor(vae_scale_factor=1, resample="bilinear")

    content = frames(2, width, height) if height > 30 else frames(2, width, 40)[:, :height]
    ours, canvas, inner = _fit(content, SIZES[str(tier)])
    theirs, size, high, wide = Cosmos3OmniPipeline._prepare_action_video_conditioning(
        Pipe(), [Image.fromarray(f) for f in content], tier, 2, torch.device("cpu"), torch.float32
    )
    assert canvas == (wide, high)
    assert inner == (int(size[3]), int(size[2]))
    pixels = ((theirs[0].permute(1, 2, 3, 0) + 1) * 127.5).round().clamp(0, 255).numpy()
    difference = np.abs(ours.astype(int) - pixels)
    assert ours.shape == pixels.shape and difference.max() <= 16 and difference.mean() < 0.4


def test_policy_and_dynamics_differ_in_what_they_know(conditioner, root, files):
    def start(mode: str, **extra: Any) -> Any:
        with torch.inference_mode():
            return conditioner.action(
                sample(root, model_mode=mode, vision_path=files["clip.mp4"], **ACTION, **extra), 1
            )[0]

    policy = start("wam")
    assert policy.noisy.tolist() == [False, True] and policy.action.noisy.all()
    assert not policy.action.values[:, 10:].any() and policy.action.values[:, :10].all()
    inverse = start("inverse_dynamics")
    assert inverse.noisy.tolist() == [False, False] and inverse.action.noisy.all()
    forward = start("forward_dynamics", action_path=files["actions.json"])
    assert forward.noisy.tolist() == [False, True] and not forward.action.noisy.any()
    assert torch.equal(policy.latents, forward.latents)  # the same noise, whatever the actions


def test_short_trajectories_hold_their_last_action(conditioner, root, files):
    fields = {**ACTION, "action_chunk_size": 8, "model_mode": "forward_dynamics", "vision_path": files["image.png"]}
    with torch.inference_mode():
        start, _ = conditioner.action(sample(root, action_path=files["actions.json"], **fields), 1)
    values = start.action.values
    assert torch.equal(values[5], values[6]) and torch.equal(values[5], values[7])
    assert not torch.equal(values[4], values[5])


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"vision_path": None}, "vision_path"),
        ({"domain_name": "libero"}, "domain_name"),
        ({"domain_name": ""}, "domain_name"),
        ({"view_point": "moon_view"}, "view_point"),
        ({"view_point": None}, "view_point"),
        ({"image_size": 123}, "image_size"),
        ({"image_size": 1080}, "no multiple of 16"),
        ({"action_chunk_size": 6}, "multiple of 4"),
        ({"raw_action_dim": 3}, "raw_action_dim"),
        ({"model_mode": "forward_dynamics"}, "action_path"),
    ],
)
def test_impossible_actions_are_refused(conditioner, root, files, changes, says):
    wide = files["clip.mp4"]
    assert says in refused(conditioner.action, sample(root, changes, model_mode="wam", vision_path=wide, **ACTION), 1)


def test_wrong_width_of_actions_names_both(conditioner, root, files):
    fields = {**ACTION, "domain_name": "av", "model_mode": "forward_dynamics", "vision_path": files["image.png"]}
    said = refused(conditioner.action, sample(root, action_path=files["actions.json"], **fields), 1)
    assert "has 10 numbers; this domain has 9" in said


def test_every_domain_reaches_its_row(conditioner, root, files, monkeypatch):
    monkeypatch.setattr(conditioner, "encode", lambda frames, count: torch.zeros(1, 48, 2, 12, 20))
    with torch.inference_mode():
        for domain, row in DOMAIN_IDS.items():
            fields = {**ACTION, "domain_name": domain, "model_mode": "wam", "vision_path": files["image.png"]}
            start, _ = conditioner.action(sample(root, **fields), 1)
            assert start.action.domain.tolist() == [row]
