"""The quickstart's batch: nine small samples of five modes about block-world scenes, and conditioning media drawn on
the spot.

Nothing is fetched. The seeds were not chosen by what came of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import av
import numpy as np
from PIL import Image

from cosmos3_serve.blockworld import draw
from cosmos3_serve.blockworld.asked import Asked
from cosmos3_serve.blockworld.scene import Event, Scene, Thing

WIDTH, HEIGHT = 320, 192
FRAMES, RATE = 9, 24
GIVEN = 5  # frames of the clip that is continued
ACTION_STEPS = 16
ACTION_SCALE = 20.0  # an action is a step of the gripper in picture sizes, times this, as in training

# Keys as the bucket holds them. The first needs encoding in a URI: a blank and a plus sign that must both survive.
FIRST_FRAME: Final = "inputs/first frame+1.png"
BEGINNING: Final = "inputs/beginning.mp4"
HELD: Final = "inputs/held.png"
ACTIONS: Final = "inputs/actions.json"

SPHERE, CUBE, CYLINDER, CONE = range(4)
RED, GREEN, BLUE, YELLOW, PURPLE, CYAN = range(6)
SMALL, LARGE = range(2)
LEFT, CENTRE, RIGHT = range(3)
FRONT, BACK = range(2)
SLIDES, FALLS, BOUNCES = range(3)


ASKED: Final[dict[str, Asked]] = {
    "cube": Asked("text2image", Scene((Thing(CUBE, RED, LARGE, CENTRE, FRONT),)), 17),
    "cone": Asked("text2image", Scene((Thing(CONE, BLUE, LARGE, LEFT, FRONT),)), 23),
    "pair": Asked(
        "text2image",
        Scene((Thing(SPHERE, GREEN, LARGE, LEFT, FRONT), Thing(CYLINDER, YELLOW, LARGE, RIGHT, FRONT))),
        29,
    ),
    "three": Asked(
        "text2image",
        Scene(
            (
                Thing(SPHERE, PURPLE, LARGE, LEFT, FRONT),
                Thing(CUBE, CYAN, LARGE, CENTRE, FRONT),
                Thing(CONE, RED, LARGE, RIGHT, FRONT),
            )
        ),
        31,
    ),
    "slide": Asked("text2video", Scene((Thing(SPHERE, RED, LARGE, LEFT, FRONT),), (Event(0, SLIDES, to=RIGHT),)), 37),
    "fall": Asked("text2video", Scene((Thing(CUBE, BLUE, LARGE, CENTRE, FRONT),), (Event(0, FALLS),)), 41),
    "animate": Asked(
        "image2video", Scene((Thing(CUBE, GREEN, LARGE, RIGHT, FRONT),), (Event(0, SLIDES, to=LEFT),)), 43
    ),
    "continue": Asked(
        "video2video", Scene((Thing(SPHERE, YELLOW, LARGE, LEFT, FRONT),), (Event(0, SLIDES, to=RIGHT),)), 47
    ),
    "push": Asked("forward_dynamics", Scene((Thing(CUBE, PURPLE, LARGE, LEFT, BACK),), gripper=0), 53),
}


def batch(bucket: str) -> dict[str, Any]:
    """The request: four images that share one inference call, clips from text, image, video and actions. Small on
    purpose, so that a laptop without a GPU makes them in seconds."""

    def uri(key: str) -> str:
        return f"s3://{bucket}/{quote(key)}"

    clip: dict[str, Any] = {"num_frames": FRAMES, "fps": RATE}
    more: dict[str, dict[str, Any]] = {
        "text2image": {"aspect_ratio": "1,1"},
        "text2video": clip,
        "image2video": {**clip, "vision_path": uri(FIRST_FRAME)},
        "video2video": {**clip, "vision_path": uri(BEGINNING)},
        "forward_dynamics": {
            "vision_path": uri(HELD),
            "action_path": uri(ACTIONS),
            "domain_name": "pusht",
            "action_chunk_size": ACTION_STEPS,
            "fps": RATE,
        },
    }
    samples = [
        {"name": name, "model_mode": asked.mode, "prompt": asked.prompt, "seed": asked.seed, **more[asked.mode]}
        for name, asked in ASKED.items()
    ]
    return {"model": "Cosmos3-Nano", "samples": samples}


def shows(name: str, frames: Any) -> bool | None:
    """Whether frames [frames, height, width, 3] show what sample `name` asked for; None where no rule says so."""
    return ASKED[name].shown(frames)


def write_media(folder: Path) -> dict[str, Path]:
    """Draw the conditioning media into `folder`; returns key -> file."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {key: folder / Path(key).name for key in (FIRST_FRAME, BEGINNING, HELD, ACTIONS)}
    Image.fromarray(scene("animate")[0]).save(files[FIRST_FRAME])
    _encode(files[BEGINNING], scene("continue")[:GIVEN])
    Image.fromarray(scene("push")[0]).save(files[HELD])
    step = [0.5 / ACTION_STEPS * ACTION_SCALE, 0.0]  # half the picture to the right
    files[ACTIONS].write_text(json.dumps([step] * ACTION_STEPS), encoding="utf-8")
    return files


def scene(name: str) -> Any:
    """Frames [FRAMES, HEIGHT, WIDTH, 3] of a sample's scene, drawn."""
    return draw.render(ASKED[name].scene, FRAMES, WIDTH, HEIGHT)


def _encode(path: Path, frames: Any) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=RATE, options={"crf": "12"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for frame in np.asarray(frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
