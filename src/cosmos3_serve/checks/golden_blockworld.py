"""The golden samples of the block-world model: what each asks for is looked for in the pixels that came.

Simple scenes on purpose: each must be right, whichever checkpoint of this world is served.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from cosmos3_serve.blockworld.asked import Asked
from cosmos3_serve.blockworld.scene import Event, Scene, Thing

SPHERE, CUBE, CYLINDER, CONE = range(4)
RED, GREEN, BLUE, YELLOW = range(4)
LARGE, FRONT = 1, 0
LEFT, CENTRE, RIGHT = range(3)
SLIDES, FALLS = range(2)

ASKED: Final[dict[str, Asked]] = {
    "golden-cube": Asked("text2image", Scene((Thing(CUBE, RED, LARGE, CENTRE, FRONT),)), 17),
    "golden-pair": Asked(
        "text2image",
        Scene((Thing(SPHERE, GREEN, LARGE, LEFT, FRONT), Thing(CYLINDER, YELLOW, LARGE, RIGHT, FRONT))),
        23,
    ),
    "golden-slide": Asked(
        "text2video", Scene((Thing(SPHERE, RED, LARGE, LEFT, FRONT),), (Event(0, SLIDES, to=RIGHT),)), 17
    ),
    "golden-fall": Asked("text2video", Scene((Thing(CUBE, BLUE, LARGE, CENTRE, FRONT),), (Event(0, FALLS),)), 23),
}
# A picture needs few steps, a motion more; the sizes are those that the model was trained with.
FIELDS: Final[dict[str, dict[str, Any]]] = {
    "text2image": {"num_steps": 8, "num_frames": 1, "resolution": "256", "aspect_ratio": "1,1"},
    "text2video": {"num_steps": 20, "num_frames": 9, "fps": 24, "resolution": "256"},
}


def samples() -> list[dict[str, Any]]:
    """Two pictures and two clips, so that each kind can share a batch."""
    return [
        {"name": name, "prompt": asked.prompt, "seed": asked.seed, "model_mode": asked.mode, **FIELDS[asked.mode]}
        for name, asked in ASKED.items()
    ]


def fault(sample: str, file: Path) -> str | None:
    """What a decodable picture or clip shows instead of what its sample asked for; None where it shows just that."""
    from cosmos3_serve.blockworld.files import decode

    asked = ASKED.get(sample)
    return None if asked is None else asked.fault(decode(file))
