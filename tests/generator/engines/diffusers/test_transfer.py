"""The plan of a transfer: chunks, windows, weights; and what is shown beside the result."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.engine import generate, latents, make_job
from support.media import frames, write_video

from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.engines.diffusers.transfer import Transfer, reflect
from cosmos3_serve.generator.engines.inputs import Wanted


@pytest.fixture(scope="module")
def tools(engine):
    tools = engine._tools
    return tools.parts, tools.codec, tools.conditioner


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clips")
    return {n: str(write_video(folder / f"{n}.mp4", frames(n, 64, 48))) for n in (2, 5, 14, 30)}


def plan(root: Path, tools: Any, changes: dict[str, Any] | None = None, **fields: Any) -> Transfer:
    args = {**make_job(root, "x", prompt="x", **fields).args, **(changes or {})}
    with torch.inference_mode():
        return Transfer(ResolvedSample.model_validate(args), *tools)


@pytest.mark.parametrize(
    "length, per_chunk, overlap, chunk, count, stride",
    [
        (14, 25, 1, 25, 1, 25),  # one chunk longer than the clip
        (14, 9, 1, 9, 2, 8),
        (14, 7, 1, 9, 2, 8),  # rounded up to 4k + 1
        (14, 5, 1, 5, 4, 4),
        (14, 5, 0, 5, 3, 5),
        (14, 5, 4, 5, 10, 1),
        (5, 5, 1, 5, 1, 5),
        (30, 9, 2, 9, 4, 7),
    ],
)
def test_chunks(root, tools, clips, length, per_chunk, overlap, chunk, count, stride):
    found = plan(
        root, tools, edge={"control_path": clips[length]}, num_video_frames_per_chunk=per_chunk,
        num_conditional_frames=overlap, max_frames=5000,
    )  # fmt: skip
    assert (found.total, found.chunk, found.count, found.stride) == (length, chunk, count, stride)
    assert chunk + (count - 1) * stride >= length  # the chunks reach the end ...
    assert count == 1 or chunk + (count - 2) * stride < length  # ... and none is idle


def test_length_is_capped(root, tools, clips):
    assert plan(root, tools, edge={"control_path": clips[30]}, max_frames=7).total == 7


@pytest.mark.parametrize("length, count", [(1, 5), (2, 2), (2, 9), (5, 3), (4, 17)])
def test_short_clips_run_back_and_forth_as_in_diffusers(length, count):
    ours = reflect(np.arange(length, dtype=np.uint8).reshape(-1, 1, 1, 1), count)
    theirs = torch.arange(length).view(1, 1, -1)
    while theirs.shape[2] < count:  # the modular pipeline's rule, on indexes
        pad = min(theirs.shape[2] - 1, count - theirs.shape[2])
        if pad <= 0:
            theirs = torch.cat([theirs, theirs[:, :, -1:].repeat(1, 1, count - theirs.shape[2])], dim=2)
            break
        theirs = torch.cat([theirs, theirs.flip(dims=[2])[:, :, :pad]], dim=2)
    assert ours.flatten().tolist() == theirs.flatten().tolist()


def test_weights_become_shares(root, tools, clips):
    path = {"control_path": clips[5]}
    found = plan(root, tools, edge={**path, "weight": 3.0}, seg=path)
    assert found.weights == (0.75, 0.25)
    assert list(found.controls) == ["edge", "seg"]


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"edge": {"control_path": None, "weight": 1.0, "preset_edge_threshold": "medium"}}, "edge.control_path"),
        ({"edge": {"control_path": "5", "weight": 0.0, "preset_edge_threshold": "medium"}}, "weight"),
        (
            {"num_conditional_frames": 5, "num_video_frames_per_chunk": 5, "edge": {"control_path": "14"}},
            "num_conditional",
        ),
        ({"num_frames": 1}, "num_frames"),
        ({"num_first_chunk_conditional_frames": 1}, "vision_path"),
        ({"show_input": True}, "vision_path"),
    ],
)
def test_impossible_transfers_are_refused(root, tools, clips, changes, says):
    if "edge" in changes and changes["edge"].get("control_path"):
        path = changes["edge"]["control_path"]
        changes = {
            **changes,
            "edge": {**changes["edge"], "control_path": clips.get(int(path)) if path.isdigit() else path},
        }
    with pytest.raises(SampleError, match=says) as caught:
        plan(root, tools, changes, edge={"control_path": clips[5]})
    assert caught.value.sample_code is SampleCode.INPUT_INVALID


def test_each_chunk_draws_from_its_own_seed_and_starts_from_the_tail(root, tools, clips, small_canvas):
    found = plan(root, tools, edge={"control_path": clips[14]}, num_video_frames_per_chunk=5)
    with torch.inference_mode():
        first = found.start(0, None)
        tail = torch.full((1, 3, 1, 96, 160), 0.5)
        second = found.start(1, tail)
    assert first.noisy.all()
    assert second.noisy.tolist() == [False, True]
    assert not torch.equal(first.latents[:, :, 1], second.latents[:, :, 1])
    assert not torch.equal(first.controls[0], second.controls[0])


def test_first_chunk_may_continue_a_clip(root, tools, clips, files, small_canvas):
    found = plan(
        root,
        tools,
        edge={"control_path": clips[14]},
        vision_path=files["wide.mp4"],
        num_first_chunk_conditional_frames=5,
        num_video_frames_per_chunk=9,
    )
    with torch.inference_mode():
        start = found.start(0, None)
    assert start.noisy.tolist() == [False, False, True]
    assert found.fps == 10.0  # the rate of the clip that is continued, as upstream


def test_shown_columns(engine, root, clips, files, small_canvas):
    job = make_job(
        root, "shown", prompt="x", edge={"control_path": clips[5]}, vision_path=files["wide.mp4"], show_input=True,
        show_control_condition=True, num_steps=1, num_video_frames_per_chunk=5,
    )  # fmt: skip
    [result] = generate(engine, job)
    assert result.outputs is not None, result.error
    shown = Wanted(str(root / "r/shown/vision.mp4"), "x").read()
    assert shown.frames.shape == (5, 96, 3 * 160, 3) and shown.fps == 10.0
    wide = Wanted(files["wide.mp4"], "x", size=(160, 96)).read().frames[:5]
    control = Wanted(clips[5], "x", size=(160, 96)).read().frames
    assert np.abs(shown.frames[:, :, :160].astype(int) - wide).mean() < 8
    assert np.abs(shown.frames[:, :, 160:320].astype(int) - control).mean() < 8


def test_a_control_of_weight_zero_changes_nothing(engine, root, clips, files, small_canvas):
    """Through the whole network: the target sees only the control that counts."""
    common: dict[str, Any] = {"prompt": "x", "num_steps": 2, "num_video_frames_per_chunk": 5, "guidance": 2.0}
    common |= {"emphasize_control_in_prompt": False, "control_guidance": 1.5, "shift": 10.0}
    one = {"edge": {"control_path": clips[5]}}
    none = {"depth": {"control_path": files["depth.mp4"], "weight": 0.0}}
    alone, both, other = latents(
        engine,
        make_job(root, "alone", **one, **common),
        make_job(root, "both", **one, **none, **common),
        make_job(root, "other", edge={"control_path": files["depth.mp4"]}, **common),
    )
    scale = alone.latents.abs().max()
    assert ((both.latents - alone.latents).abs().max() / scale) < 1e-5
    assert ((other.latents - alone.latents).abs().max() / scale) > 1e-3


def test_separate_times_are_another_result(engine, root, clips):
    common: dict[str, Any] = {
        "prompt": "x",
        "num_steps": 1,
        "edge": {"control_path": clips[5]},
        "num_video_frames_per_chunk": 5,
    }
    shared, separate = latents(
        engine, make_job(root, "a", **common), make_job(root, "b", share_vision_temporal_positions=False, **common)
    )
    assert not torch.equal(shared.latents, separate.latents)
