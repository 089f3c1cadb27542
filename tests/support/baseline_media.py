"""Real media and resolved sample args for the support servers, made without the package under test.

The defaults and sizes repeat what the pinned framework publishes, so that a test that passes against them says
something about the framework's answers and not about our own resolver.
"""

from __future__ import annotations

import functools
import io
import json
import struct
from pathlib import Path
from typing import Any

HINTS = ("edge", "blur", "depth", "seg", "wsm")
ACTION_MODES = ("forward_dynamics", "inverse_dynamics", "wam")
ACTION_DIMS = {"av": 9, "pusht": 2, "umi": 10, "bridge_orig_lerobot": 10}
SIZES = {
    "256": {"1,1": (256, 256), "4,3": (320, 256), "3,4": (256, 320), "16,9": (320, 192), "9,16": (192, 320)},
    "480": {"1,1": (640, 640), "4,3": (736, 544), "3,4": (544, 736), "16,9": (832, 480), "9,16": (480, 832)},
    "720": {"1,1": (960, 960), "4,3": (1104, 832), "3,4": (832, 1104), "16,9": (1280, 720), "9,16": (720, 1280)},
}
_TABLE = {  # mode: num_steps, guidance, shift, aspect_ratio, num_frames
    "text2image": (50, 4.0, 3.0, "1,1", 1),
    "image2image": (35, 6.0, 5.0, None, 1),
    **dict.fromkeys(("text2video", "image2video", "video2video", "audio_image2video"), (35, 6.0, 10.0, "16,9", 189)),
    **dict.fromkeys(ACTION_MODES, (30, 1.0, 10.0, "16,9", 189)),
    "reasoner": (1, 0.0, 0.0, None, 1),
}
_NULL = [
    "tensors_file",
    "pickle_file",
    "guidance_interval",
    "vision_path",
    "sound_path",
    "action_path",
    "raw_action_dim",
    "top_k",
    "top_p",
    "video_fps",
    "edge",
    "blur",
    "depth",
    "seg",
    "wsm",
    "control_guidance_interval",
    "negative_prompt_file",
    "max_new_tokens",
    "do_sample",
    "temperature",
    "repetition_penalty",
    "presence_penalty",
    "prompt_upsampler_seed",
    "num_video_frames_per_chunk",
    "num_conditional_frames",
    "max_frames",
    "show_control_condition",
    "show_input",
    "num_first_chunk_conditional_frames",
    "share_vision_temporal_positions",
    "emphasize_control_in_prompt",
]
_PLAIN: dict[str, Any] = {
    "model": "",
    "extra": {},
    "num_outputs": 1,
    "seed": None,
    "prompt": "",
    "negative_prompt": "",
    "sigma_max": 80.0,
    "normalize_cfg": False,
    "negative_metadata_mode": "same",
    "negative_prompt_keep_metadata": True,
    "duration_template": "The video is {duration:.1f} seconds long and is of {fps:.0f} FPS.",
    "resolution_template": "This image is of {height}x{width} resolution.",
    "inverse_duration_template": "The video is not {duration:.1f} seconds long and is not of {fps:.0f} FPS.",
    "inverse_resolution_template": "This video is not of {height}x{width} resolution.",
    "condition_frame_indexes_vision": [],
    "condition_video_keep": "first",
    "resolution": "720",
    "fps": 24,
    "video_save_quality": 10,
    "image_save_quality": 95,
    "enable_sound": False,
    "domain_name": "",
    "image_size": 256,
    "action_chunk_size": 16,
    "view_point": "ego_view",
    "control_guidance": 1.0,
    "native_prompt_upsampling": False,
    "prompt_upsampler_max_tokens": 20000,
    "prompt_upsampler_temperature": 0.7,
    "prompt_upsampler_top_p": 0.8,
    "prompt_upsampler_top_k": 20,
    "prompt_upsampler_repetition_penalty": 1.0,
    "prompt_upsampler_presence_penalty": 1.5,
}


# Every field of upstream's sample overrides; it forbids any other.
FIELDS = frozenset(
    {*_NULL, *_PLAIN, "name", "model_mode", "num_frames", "num_steps", "guidance", "shift", "aspect_ratio"}
    | {"output_dir", "defaults_file", "prompt_path", "prompt_upsampling"}
) - {"native_prompt_upsampling"}


def resolve(sample: dict[str, Any], output_dir: str) -> dict[str, Any]:
    """Resolved args of one sample as the framework echoes them, absolute `output_dir` included."""
    given = {k: v for k, v in sample.items() if v is not None and k not in ("prompt_path", "prompt_upsampling")}
    vision = str(given.get("vision_path", "")).lower()
    source = "text" if not vision else "video" if vision.endswith(".mp4") else "image"
    mode = given.get("model_mode") or f"{source}2{'image' if given.get('num_frames') == 1 else 'video'}"
    steps, guidance, shift, aspect, frames = _TABLE[mode]
    args = dict.fromkeys(_NULL) | json.loads(json.dumps(_PLAIN))
    args |= {
        "num_steps": steps,
        "guidance": guidance,
        "shift": shift,
        "aspect_ratio": aspect,
        "num_frames": frames,
        **given,
        "model_mode": mode,
        "name": str(sample["name"]).strip(),
        "output_dir": output_dir,
    }
    for hint in HINTS:
        if args[hint] is not None:
            args[hint] = {"control_path": None, "weight": 1.0, **args[hint]}
    if mode == "reasoner":
        args |= {"resolution": None, "fps": 1}
    else:
        args["num_frames"] = -(-(args["num_frames"] - 1) // 4) * 4 + 1
        if args["wsm"] and not given.get("num_frames"):
            args["num_frames"] = 101
    return args


def write_outputs(args: dict[str, Any], directory: Path, padding: dict[str, int]) -> list[dict[str, Any]]:
    """Write one sample's files and return its `outputs` with absolute paths.

    `padding` appends bytes that decoders skip (after the end of a JPEG, a `free` box of an MP4), sparse on disk: large
    artifacts that are still real media.
    """
    directory.mkdir(parents=True, exist_ok=True)
    mode, hints = args["model_mode"], [h for h in HINTS if args[h] is not None]
    content: dict[str, Any] = {}
    if mode == "reasoner" and not hints:
        text = "the pallet is on the left"
        (directory / "reasoner_text.txt").write_text(text, "utf-8")
        return [{"content": {"reasoner_text": text}, "files": [str(directory / "reasoner_text.txt")]}]
    image = args["num_frames"] == 1
    frames = args["num_frames"]
    if mode in ACTION_MODES:
        frames = args["action_chunk_size"] + 1
        content["action"] = [[0.0] * ACTION_DIMS.get(args["domain_name"], 2)] * args["action_chunk_size"]
    width, height = SIZES[args["resolution"] or "256"][args["aspect_ratio"] or "1,1"]
    suffix = "jpg" if image else "mp4"
    data = jpeg(width, height) if image else mp4(width, height, frames, int(args["fps"]))
    files = []
    for stem in ("vision", *(f"control_{hint}" for hint in hints)):
        path = directory / f"{stem}.{suffix}"
        extra = padding.get(path.name, 0)
        with path.open("wb") as out:
            out.write(data)
            if extra and not image:
                out.write(struct.pack(">I4s", extra, b"free"))
            out.truncate(len(data) + extra)
        files.append(str(path))
    for name, extra in padding.items():
        if not (directory / name).exists() and not name.startswith(("vision.", "control_")):
            with (directory / name).open("wb") as out:
                out.truncate(extra)
            files.insert(0, str(directory / name))
    return [{"content": content, "files": files}]


@functools.lru_cache(maxsize=32)
def jpeg(width: int, height: int) -> bytes:
    """A JPEG of a horizontal ramp."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).convert("RGB").save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


@functools.lru_cache(maxsize=32)
def mp4(width: int, height: int, frames: int, fps: int = 24) -> bytes:
    """An H.264 MP4 of `frames` grey frames, each a little brighter."""
    import av
    from PIL import Image

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"preset": "ultrafast"}
        for index in range(frames):
            image = Image.new("RGB", (width, height), (index % 200, 90, 120))
            container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode())
    return buffer.getvalue()
