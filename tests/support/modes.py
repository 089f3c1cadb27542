"""A small sample of each mode, and when two results are the same: for tests of the diffusers engine."""

from typing import Any

import torch

PROMPTS = ("a red cube", "a much longer prompt about a robot arm that lifts a green bottle", "dog", "rain. Night")
ACTION = {"domain_name": "bridge_orig_lerobot", "action_chunk_size": 4, "num_steps": 2, "guidance": 3.0}


def case(mode: str, files: dict[str, str]) -> dict[str, Any]:
    clip, image = files["clip.mp4"], files["image.png"]
    edge, depth = {"control_path": files["edge.mp4"], "weight": 3.0}, {"control_path": files["depth.mp4"]}
    return {
        "text2image": {"model_mode": "text2image", "num_steps": 3},
        "text2video": {"model_mode": "text2video", "num_steps": 2, "num_frames": 5},
        "image2video": {"vision_path": image, "num_steps": 2, "num_frames": 5},
        "video2video": {"vision_path": clip, "num_steps": 2, "num_frames": 5, "condition_frame_indexes_vision": [0]},
        "wam": {"model_mode": "wam", "vision_path": image, **ACTION},
        "forward_dynamics": {
            "model_mode": "forward_dynamics", "vision_path": image, "action_path": files["actions.json"], **ACTION
        },
        "inverse_dynamics": {"model_mode": "inverse_dynamics", "vision_path": clip, **ACTION},
        "transfer": {"edge": edge, "depth": depth, "num_video_frames_per_chunk": 5, "max_frames": 5, "num_steps": 1,
                     "control_guidance": 2.0},
    }[mode]  # fmt: skip


MODES = (
    "text2image", "text2video", "image2video", "video2video", "wam", "forward_dynamics", "inverse_dynamics", "transfer",
)  # fmt: skip


def same(a: Any, b: Any) -> bool:
    """Whether two results hold the same bits: latents, actions and chunks decoded on the way."""
    actions = (a.action is None and b.action is None) or torch.equal(a.action, b.action)
    chunks = len(a.chunks) == len(b.chunks) and all((x == y).all() for x, y in zip(a.chunks, b.chunks, strict=True))
    return actions and chunks and torch.equal(a.latents, b.latents)
