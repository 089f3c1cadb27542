"""Our loop against diffusers' own pipelines: same network, same schedule, same numbers.

The oracle computes what ours splits (text with every step, guidance in two passes), so equality is up to the order of
float32 additions.
"""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.engine import components, latents, make_job
from support.vae import remember

from cosmos3_serve.contract.prompt import negative_text, prompt_text
from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.generator.engines.diffusers.schedule import flow_scheduler
from cosmos3_serve.generator.engines.inputs import Wanted

TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def pipeline():
    from diffusers import Cosmos3OmniPipeline

    parts = components()
    return Cosmos3OmniPipeline(
        transformer=parts.transformer,
        text_tokenizer=parts.tokenizer,
        vae=remember(copy.copy(parts.vae)),
        scheduler=flow_scheduler(3.0, 2, torch.device("cpu")),
        enable_safety_checker=False,
        default_use_system_prompt=False,
        use_native_flow_schedule=True,
    )


def stock(pipeline: Any, sample: ResolvedSample, **inputs: Any) -> Any:
    """The stock pipeline on the same texts, seed and schedule; latents, or its whole output."""
    pipeline.scheduler = flow_scheduler(sample.shift, sample.num_steps, torch.device("cpu"))
    sized = {}
    if "action" not in inputs:
        assert sample.size is not None
        sized = {
            "prompt": prompt_text(sample),
            "negative_prompt": negative_text(sample),
            "num_frames": sample.num_frames,
            "width": sample.size[0],
            "height": sample.size[1],
        }
    return pipeline(
        **{"prompt": sample.prompt, **sized, **inputs},
        fps=float(sample.fps),
        num_inference_steps=sample.num_steps,
        guidance_scale=sample.guidance,
        generator=torch.Generator().manual_seed(sample.seed or 0),
        use_system_prompt=False,
        add_resolution_template=False,
        add_duration_template=False,
        output_type="latent",
    )


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    assert error < TOLERANCE, f"relative difference {error:.2e}"


def pictures(path: str, count: int, size: tuple[int, int]) -> list[Image.Image]:
    return [Image.fromarray(frame) for frame in Wanted(str(path), "vision_path", size=size).read().frames[:count]]


def test_text2image(engine, root, pipeline):
    job = make_job(root, "a", prompt="a red cube", model_mode="text2image", num_steps=6)
    [ours] = latents(engine, job)
    close(ours.latents, stock(pipeline, ours.sample).video)


def test_text2video_with_a_negative_prompt_and_another_rate(engine, root, pipeline):
    job = make_job(
        root,
        "a",
        prompt="a red cube",
        negative_prompt="grey",
        model_mode="text2video",
        num_frames=5,
        fps=10,
        num_steps=3,
    )
    [ours] = latents(engine, job)
    assert ours.latents.shape[2] == 2
    close(ours.latents, stock(pipeline, ours.sample).video)


def test_image2video(engine, root, pipeline, files):
    job = make_job(root, "a", prompt="a cube", vision_path=files["image.png"], num_frames=5, num_steps=3)
    [ours] = latents(engine, job)
    close(ours.latents, stock(pipeline, ours.sample, image=pictures(files["image.png"], 1, (320, 192))[0]).video)


@pytest.mark.parametrize("keep", ["first", "last"])
def test_video2video(engine, root, pipeline, files, keep):
    job = make_job(
        root, "a", prompt="x", vision_path=files["clip.mp4"], num_frames=9, num_steps=2,
        condition_frame_indexes_vision=[0, 1], condition_video_keep=keep,
    )  # fmt: skip
    [ours] = latents(engine, job)
    clip = pictures(files["clip.mp4"], 99, (320, 192))
    theirs = stock(pipeline, ours.sample, video=clip, condition_frame_indexes_vision=[0, 1], condition_video_keep=keep)
    close(ours.latents, theirs.video)


@pytest.mark.parametrize("mode", ["wam", "forward_dynamics", "inverse_dynamics"])
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_action(engine, root, pipeline, files, mode, guidance):
    from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import CosmosActionCondition

    fields: dict[str, Any] = {"vision_path": files["clip.mp4"], "prompt": "pick the cube", "num_steps": 3}
    raw = None
    if mode == "forward_dynamics":
        fields["action_path"] = files["actions.json"]
        raw = torch.tensor([[round(0.01 * (i + j), 3) for j in range(10)] for i in range(6)])
    job = make_job(
        root, "a", model_mode=mode, domain_name="bridge_orig_lerobot", action_chunk_size=4, guidance=guidance,
        duration_template="", resolution_template="", **fields,
    )  # fmt: skip
    [ours] = latents(engine, job)
    action = CosmosActionCondition(
        mode="policy" if mode == "wam" else mode,
        chunk_size=4,
        domain_name="bridge_orig_lerobot",
        resolution_tier=256,
        raw_actions=raw,
        video=pictures(files["clip.mp4"], 5, (320, 192)),
        view_point="ego_view",
    )
    theirs = stock(pipeline, ours.sample, action=action)
    close(ours.latents, theirs.video)
    if theirs.action is not None:
        close(ours.action[:, :10], theirs.action[0])
    else:
        assert mode == "forward_dynamics"
        assert torch.equal(ours.action[:, :10], raw[:4])


@pytest.fixture(scope="module")
def modular():
    from diffusers.modular_pipelines.cosmos.modular_blocks_cosmos3 import Cosmos3OmniBlocks

    parts = components()
    pipe = Cosmos3OmniBlocks().init_pipeline()
    pipe.update_components(
        transformer=parts.transformer,
        text_tokenizer=parts.tokenizer,
        vae=remember(copy.copy(parts.vae)),
        scheduler=flow_scheduler(10.0, 2, torch.device("cpu")),
    )
    pipe.disable_safety_checker()
    return pipe


@pytest.mark.parametrize("chunk, control_guidance, guidance", [(9, 1.5, 3.0), (5, 2.0, 1.0)])
def test_transfer_with_one_hint(
    engine, root, modular, files, small_canvas, monkeypatch, chunk, control_guidance, guidance
):
    """The modular pipeline takes plain spacing and one generator for all chunks; ours is made to for the comparison."""
    from diffusers import UniPCMultistepScheduler

    def plain(shift: float, num_steps: int, device: Any) -> Any:
        scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift)
        scheduler.set_timesteps(num_steps, device=device)
        return scheduler

    generator = torch.Generator().manual_seed(1)
    module = "cosmos3_serve.generator.engines.diffusers"
    monkeypatch.setattr(f"{module}.denoising.flow_scheduler", plain)
    monkeypatch.setattr(f"{module}.condition.Conditioner.generator", lambda self, seed: generator)
    job = make_job(
        root, "a", prompt="a street", edge={"control_path": files["edge.mp4"]}, num_steps=2, guidance=guidance,
        control_guidance=control_guidance, num_video_frames_per_chunk=chunk, emphasize_control_in_prompt=False,
    )  # fmt: skip
    items = engine.denoise([job], lambda *_: None, lambda key: False)
    sample = items[0].latents.sample
    ours = read_frames(engine, items[0])
    modular.scheduler = plain(sample.shift, 2, None)
    width, height = sample.size
    control = pictures(files["edge.mp4"], 99, (width, height))
    theirs = modular(
        prompt=prompt_text(sample, num_frames=chunk),
        negative_prompt=negative_text(sample, num_frames=chunk),
        control_videos={"edge": control},
        width=width,
        height=height,
        fps=24.0,
        num_inference_steps=2,
        guidance_scale=guidance,
        control_guidance=control_guidance,
        num_video_frames_per_chunk=chunk,
        num_conditional_frames=1,
        use_system_prompt=False,
        generator=torch.Generator().manual_seed(1),
        output_type="np",
    )
    theirs_frames = (np.asarray(theirs.get("videos")) * 255).astype(np.uint8)
    assert ours.shape == theirs_frames.shape
    difference = np.abs(ours.astype(int) - theirs_frames.astype(int))
    assert difference.max() <= 1  # where float noise crosses a cut-off fraction
    assert (difference > 0).mean() < 0.01


def read_frames(engine: Any, item: Any) -> np.ndarray:
    return engine._finisher._decode(item.latents)
