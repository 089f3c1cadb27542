"""Our contract against the REAL argument classes of the pinned revision, field by field. No weights, no Ray."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.framework_service import CPU, SRC
from support.real_framework import PYTHON, needs_framework

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600), needs_framework]


def samples(media: Path) -> dict[str, dict[str, Any]]:
    image, clip, sound, action = (str(media / name) for name in ("a.png", "a.mp4", "a.wav", "a.json"))
    return {
        "text2image": {"num_frames": 1},
        "text2image-480": {"num_frames": 1, "resolution": "480", "aspect_ratio": "9,16", "guidance": 2.5},
        "text2image-1080": {"model_mode": "text2image", "resolution": "1080"},
        "text2video": {},
        "text2video-rounds-up": {"num_frames": 100, "fps": 10},
        "text2video-negative": {"negative_prompt": "", "negative_metadata_mode": "inverse", "shift": 4.0},
        "text2video-none": {"negative_metadata_mode": "none", "negative_prompt_keep_metadata": False},
        "text2video-upsampled": {"prompt_upsampling": True, "prompt_upsampler_top_k": 3},
        "image2video": {"vision_path": image},
        "image2video-indexes": {"vision_path": image, "condition_frame_indexes_vision": [0, 2]},
        "image2image": {"vision_path": image, "num_frames": 1},
        "image2image-sized": {"vision_path": image, "num_frames": 1, "resolution": "256", "aspect_ratio": "1,1"},
        "video2video": {"vision_path": clip},
        "video2video-last": {"vision_path": clip, "condition_video_keep": "last", "guidance_interval": [0.1, 0.9]},
        "audio_image2video": {"model_mode": "audio_image2video", "vision_path": image, "sound_path": sound},
        "forward_dynamics": {
            "model_mode": "forward_dynamics",
            "vision_path": image,
            "action_path": action,
            "domain_name": "AV ",
        },
        "inverse_dynamics": {"model_mode": "inverse_dynamics", "vision_path": clip, "domain_name": "pusht"},
        "wam": {"model_mode": "wam", "vision_path": image, "domain_name": "pusht", "action_chunk_size": 4},
        "reasoner": {"model_mode": "reasoner"},
        "reasoner-image": {"model_mode": "reasoner", "vision_path": image, "do_sample": True, "top_p": 0.5},
        "edge": {"edge": {"control_path": clip}},
        "edge-computed": {"edge": {"preset_edge_threshold": "low"}, "vision_path": clip},
        "blur-weighted": {"blur": {"control_path": clip, "weight": 0.5}, "control_guidance": 2.0},
        "depth": {"depth": {"control_path": clip}},
        "seg": {"seg": {"control_path": clip}, "guidance": 5.0},
        "wsm": {"wsm": {"control_path": clip}},
        "two-hints": {"edge": {"control_path": clip}, "seg": {"control_path": clip}, "max_frames": 49},
        "extra": {"num_frames": 1, "extra": {"k": [1, {"n": None}]}},
    }


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    media = tmp_path_factory.mktemp("media")
    Image.new("RGB", (64, 48)).save(media / "a.png")
    for name in ("a.mp4", "a.wav", "a.json"):
        (media / name).write_bytes(b"only looked for, not read")
    asked = samples(media)
    lines = [{"name": name, "prompt": "a cube", "seed": 3} | fields for name, fields in asked.items()]
    done = subprocess.run(
        [PYTHON, str(CPU / "compare_contract.py")],
        env={**os.environ, "PYTHONPATH": str(SRC), "COSMOS_TRAINING": "0"},
        input=json.dumps(lines), capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(asked, json.loads(done.stdout.strip().splitlines()[-1]), strict=True))


@pytest.mark.parametrize("name", samples(Path("/")))
def test_upstream_resolves_to_what_we_resolved(differences: dict[str, Any], name: str) -> None:
    assert differences[name] == {}
