"""The quickstart's batch: nine small samples of several modes, and conditioning media drawn on the spot.

Nothing is shipped and nothing is fetched: the picture is drawn with Pillow, the clips are encoded with PyAV.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import av
from PIL import Image, ImageDraw, ImageFilter

SIZE: Final = (320, 192)
FRAMES, RATE = 17, 8

# Keys as the bucket holds them. The first needs encoding in a URI: a blank and a plus sign that must both survive.
FIRST_FRAME: Final = "inputs/first frame+1.png"
STREET: Final = "inputs/street.mp4"
EDGES: Final = "inputs/street edges.mp4"

SKY, ROAD, CAR, LINE = (176, 204, 226), (74, 78, 86), (214, 92, 60), (240, 226, 168)


def batch(bucket: str) -> dict[str, Any]:
    """The request: four images that share one inference call, clips from text, image and video, one action sample, one
    transfer sample. Small on purpose, so that a laptop without a GPU makes them in seconds."""

    def uri(key: str) -> str:
        return f"s3://{bucket}/{quote(key)}"

    image: dict[str, Any] = {"model_mode": "text2image"}
    clip: dict[str, Any] = {"num_frames": 5, "fps": RATE}
    samples = [
        {"name": "workcell", "prompt": "a robot workcell, two arms above a steel table", "seed": 17, **image},
        {"name": "aisle", "prompt": "a warehouse aisle with a forklift", "seed": 23, **image},
        {"name": "harbour", "prompt": "a container crane at dusk", "seed": 29, **image},
        {"name": "field", "prompt": "a harvester in a wheat field", "seed": 31, **image},
        {"name": "rain", "model_mode": "text2video", "prompt": "rain on a city street", "seed": 37, **clip},
        {
            "name": "drive",
            "model_mode": "image2video",
            "prompt": "the car drives on",
            "vision_path": uri(FIRST_FRAME),
            "seed": 41,
            **clip,
        },
        {
            "name": "continue",
            "model_mode": "video2video",
            "prompt": "the street goes on",
            "vision_path": uri(STREET),
            "seed": 43,
            **clip,
            "num_frames": 9,  # five are given, so that four are left to make
        },
        {
            "name": "grasp",
            "model_mode": "wam",
            "prompt": "pick up the red block",
            "vision_path": uri(FIRST_FRAME),
            "domain_name": "bridge_orig_lerobot",
            "action_chunk_size": 8,
            "seed": 47,
        },
        {
            "name": "repaint",
            "model_mode": "text2video",
            "prompt": "the same street in snow",
            "edge": {"control_path": uri(EDGES)},
            "max_frames": 5,
            "seed": 53,
            **clip,
        },
    ]
    return {"model": "Cosmos3-Nano", "samples": samples}


def write_media(folder: Path) -> dict[str, Path]:
    """Draw the conditioning media into `folder`; returns key -> file."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {key: folder / Path(key).name for key in (FIRST_FRAME, STREET, EDGES)}
    scene(0).save(files[FIRST_FRAME])
    _encode(files[STREET], [scene(step) for step in range(FRAMES)])
    edges = [scene(step).convert("L").filter(ImageFilter.FIND_EDGES).convert("RGB") for step in range(FRAMES)]
    _encode(files[EDGES], edges)
    return files


def scene(step: int) -> Image.Image:
    """A car on a road, a little further to the right with every step."""
    width, height = SIZE
    image = Image.new("RGB", SIZE, SKY)
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, height * 6 // 10, width, height), fill=ROAD)
    for mark in range(-1, 8):
        left = mark * 56 - step * 6 % 56
        draw.rectangle((left, height * 8 // 10, left + 28, height * 8 // 10 + 5), fill=LINE)
    for house in range(4):
        left = house * 92 - step * 2
        draw.rectangle((left, 56 + 12 * (house % 3), left + 64, height * 6 // 10), fill=(150 - 18 * house, 130, 120))
    left = 40 + step * 9
    draw.rounded_rectangle((left, 104, left + 84, 136), radius=9, fill=CAR)
    draw.polygon([(left + 16, 106), (left + 28, 86), (left + 60, 86), (left + 72, 106)], fill=CAR)
    for wheel in (left + 18, left + 64):
        draw.ellipse((wheel - 9, 127, wheel + 9, 145), fill=(28, 30, 34))
    return image


def _encode(path: Path, frames: list[Image.Image]) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = SIZE[0], SIZE[1], "yuv420p"
        for image in frames:
            container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode(None))
