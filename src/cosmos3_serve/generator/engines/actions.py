"""Action trajectories: reading them from JSON, and what each embodiment's numbers mean to the model."""

from __future__ import annotations

import json
import math
from pathlib import Path

from cosmos3_serve.generator.engines.inputs import invalid

MAX_BYTES = 16 * 1024 * 1024
MAX_STEPS = 100_000

# Which rows of the action heads an embodiment uses. Names of the pinned framework, and the names under which diffusers
# 0.42 knows the same rows. `libero` has an id but no fixed width, so it is served by neither.
DOMAIN_IDS: dict[str, int] = {
    "av": 1,
    "camera_pose": 2,
    "hand_pose": 3,
    "pusht": 4,
    "umi": 6,
    "bridge_orig_lerobot": 7,
    "droid_lerobot": 8,
    "robomind-franka": 8,
    "embodiment_b": 9,
    "galbot": 9,
    "robomind-franka-dual": 12,
    "robomind-ur": 13,
    "agibotworld": 15,
    "embodiment_c_gripper": 15,
    "embodiment_c_gripper_ext": 15,
    "agibot_gear_gripper": 15,
    "agibot_gear_gripper_ext": 15,
    "xdof_yam": 16,
    "molmoact2_yam": 16,
    "abc_yam": 16,
    "fractal": 20,
    "drawanything": 21,
}

VIEW_POINTS = frozenset({"ego_view", "third_person_view", "wrist_view", "concat_view"})


def read_actions(path: Path, field: str, *, width: int) -> list[list[float]]:
    """`[[float] * width] * T`, T at least 1, every number finite.

    Raises:
        SampleError: `input_invalid`.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise invalid(field, f"more than {MAX_BYTES // 1024**2} MiB of JSON")
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise invalid(field, f"the file is no JSON text ({type(error).__name__})") from None
    if not isinstance(value, list) or not value:
        raise invalid(field, "must be a non-empty list of steps, each a list of numbers")
    if len(value) > MAX_STEPS:
        raise invalid(field, f"more than {MAX_STEPS} steps")
    for index, step in enumerate(value):
        if not isinstance(step, list) or not all(_is_number(x) for x in step):
            raise invalid(field, f"step {index} is no list of finite numbers")
        if len(step) != width:
            raise invalid(field, f"step {index} has {len(step)} numbers; this domain has {width}")
    return [[float(x) for x in step] for step in value]


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False
