"""Scenes in bulk: what they show as state rows, what is said of them as token ids; made by all cores."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import layout
import numpy as np

from cosmos3_serve.blockworld import draw, words
from cosmos3_serve.blockworld.scene import BASE_Y, COLUMN_X, Scene, sample_grasp, sample_scene

FRAME_COUNTS = (5, 9, 17)
FPS = (24, 24, 24, 8, 10, 12, 16, 30)
SIZES = ((256, 256), (320, 192))  # width, height
TURN_TOKENS = 144
PROMPT_TOKENS = 96
ACTION_TOKENS = 176
ACTION_SCALE = 20.0

# The negative prompt that the engine takes for video where a sample names none.
NEGATIVE = (
    "blurry, low resolution, compression artifacts, flicker, jitter, warped geometry, broken motion, overexposed, text"
    " overlay, watermark"
)
_TOK: Any = None


def tok() -> Any:
    global _TOK
    if _TOK is None:
        _TOK = layout.tokenizer()
    return _TOK


def encode(text: str) -> list[int]:
    ids: list[int] = tok().encode(text, add_special_tokens=False).ids
    return ids


def sampled(frames: int, fps: float) -> list[int]:
    """Frames that a reasoner sees of a short clip: two a second, at least four."""
    count = min(max(int(frames / fps * 2), 4), frames)
    return [int(i) for i in np.linspace(0, frames - 1, count).round()]


def stamps(frames: int, fps: float) -> list[float]:
    picked = sampled(frames, fps)
    picked += picked[-1:] * (len(picked) % 2)
    return [(picked[i] + picked[i + 1]) / 2 / fps for i in range(0, len(picked), 2)]


def metadata(text: str, frames: int, fps: int, size: tuple[int, int]) -> str:
    """The service's sentences behind a prompt."""
    text = text.rstrip(".")
    if frames > 1:
        text += f". The video is {frames / fps:.1f} seconds long and is of {fps:.0f} FPS"
    return f"{text}. This {'video' if frames > 1 else 'image'} is of {size[1]}x{size[0]} resolution."


def prompt_ids(text: str) -> list[int]:
    """A prompt as the generation tower reads it."""
    return encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<|im_end|><|vision_start|>")


# ---- questions ------------------------------------------------------------------------------------------------------


def vision_ids(kind: str, tokens: int, times: list[float], outer: bool = True) -> list[int]:
    if kind == "image":
        return encode("<|vision_start|>" + "<|image_pad|>" * tokens + "<|vision_end|>")
    parts = [
        [*encode(f"<{t:.1f} seconds>"), *encode("<|vision_start|>" + "<|video_pad|>" * tokens + "<|vision_end|>")]
        for t in times
    ]
    body = [i for part in parts for i in part]
    return [*encode("<|vision_start|>"), *body, *encode("<|vision_end|>")] if outer else body


def dialogue(turns: list[words.Turn], limit: int, lead: str = "") -> tuple[list[int], list[bool]]:
    """Ids behind the media (or behind `lead`) of the first message, and which of them are answers to learn."""
    ids: list[int] = []
    learn: list[bool] = []
    for number, turn in enumerate(turns):
        asked = encode(
            f"{'<|im_start|>user' + chr(10) if number else lead}{turn.question}<|im_end|>\n<|im_start|>assistant\n"
        )
        answer = encode(f"{turn.answer}<|im_end|>")
        more = [*asked, *answer, *encode("\n")]
        if len(ids) + len(more) > limit:
            break
        ids += more
        learn += [False] * len(asked) + [True] * len(answer) + [False]
    return ids, learn


@dataclass
class Questions:
    """`state` [n, 4, fields] (pictures: one moment four times), `ids` and `learn` [n, TURN_TOKENS], `times` [n, 2]."""

    state: np.ndarray
    ids: np.ndarray
    learn: np.ndarray
    times: np.ndarray


def _questions(job: tuple[int, int, str]) -> Questions:
    seed, count, kind = job
    rng = random.Random(seed)
    state: Any = np.zeros((count, 4, draw.STATE_FIELDS), np.float32)
    ids: Any = np.zeros((count, TURN_TOKENS), np.int16)
    learn: Any = np.zeros((count, TURN_TOKENS), np.bool_)
    times: Any = np.zeros((count, 2), np.float32)
    for i in range(count):
        scene = sample_scene(rng, moving=kind != "image", held_out=False)
        video = kind == "video" or (kind == "text" and rng.random() < 0.5)
        turns = words.questions(scene, rng, video=video)
        if rng.random() < 0.3:
            turns.insert(rng.randrange(3), words.description(scene, rng, video=video))
        lead = ""
        if kind == "text":
            lead = words.caption(scene, rng, full=True) + ("" if scene.events or not video else " Nothing moves.") + " "
        own, mask = dialogue(turns, TURN_TOKENS, lead)
        ids[i, : len(own)], learn[i, : len(own)] = own, mask
        if kind == "video":
            frames, fps = rng.choice(FRAME_COUNTS), rng.choice(FPS)
            picked = sampled(frames, fps)
            state[i] = draw.states(scene, [p / (frames - 1) for p in picked])
            times[i] = stamps(frames, fps)[:2]
        else:
            state[i] = draw.states(scene, [rng.choice((0.0, 0.0, 1.0)) if kind == "image" else 0.0] * 4)
    return Questions(state, ids, learn, times)


def questions(count: int, kind: str, seed: int) -> Questions:
    parts = _spread(_questions, [(seed * 1000 + i, n, kind) for i, n in enumerate(_shares(count))])
    return Questions(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("state", "ids", "learn", "times")))


# ---- prompts --------------------------------------------------------------------------------------------------------


@dataclass
class Prompts:
    """`state` [n, frames, fields], `ids` [n, limit] with `lengths` [n], `fps` [n], `actions` [n, frames - 1, 2]."""

    state: np.ndarray
    ids: np.ndarray
    lengths: np.ndarray
    fps: np.ndarray
    actions: np.ndarray | None = None


def _prompts(job: tuple[int, int, str, int, tuple[int, int]]) -> Prompts:
    seed, count, kind, frames, size = job
    rng = random.Random(seed)
    limit = ACTION_TOKENS if kind == "action" else PROMPT_TOKENS
    state: Any = np.zeros((count, frames, draw.STATE_FIELDS), np.float32)
    ids: Any = np.zeros((count, limit), np.int16)
    lengths: Any = np.zeros(count, np.int32)
    rates: Any = np.zeros(count, np.float32)
    moves: Any = np.zeros((count, frames - 1, 2), np.float32)
    for i in range(count):
        fps = rng.choice(FPS)
        if kind == "action":
            scene = sample_grasp(rng, held_out=False)
            path, moves[i] = wander(rng, scene, frames)
            state[i] = draw.states(scene, draw.progress(frames), path)
            text = action_prompt(scene, rng, frames, fps, size)
        else:
            scene = sample_scene(rng, moving=frames > 1, held_out=False)
            state[i] = draw.states(scene, draw.progress(frames))
            text = metadata(words.caption(scene, rng), frames, fps, size)
            if kind == "follow" and scene.events and rng.random() < 0.5:
                text = metadata(words.happens(scene), frames, fps, size)
        own = prompt_ids(text)
        ids[i, : len(own)], lengths[i], rates[i] = own, len(own), fps
    return Prompts(state, ids, lengths, rates, moves if kind == "action" else None)


def prompts(count: int, kind: str, frames: int, size: tuple[int, int], seed: int) -> Prompts:
    """`kind`: `scene`, `follow` (a clip whose first frames will be given) or `action`."""
    parts = _spread(_prompts, [(seed * 1000 + i, n, kind, frames, size) for i, n in enumerate(_shares(count))])
    state, ids, lengths, rates = (
        np.concatenate([getattr(p, f) for p in parts]) for f in ("state", "ids", "lengths", "fps")
    )
    moves = [p.actions for p in parts if p.actions is not None]
    return Prompts(state, ids, lengths, rates, np.concatenate(moves) if moves else None)


def wander(rng: random.Random, scene: Scene, frames: int) -> tuple[draw.Path, np.ndarray]:
    """A smooth way of the gripper within the picture, and its actions [frames - 1, 2]: scaled steps right and down."""
    held = scene.things[scene.gripper]
    x0, y0 = COLUMN_X[held.column], BASE_Y[held.depth]
    goal = rng.uniform(0.15, 0.85) - x0, min(0.0, rng.uniform(0.42, 0.9) - y0)
    bend = rng.uniform(-0.1, 0.0)
    offsets, p = [], 0.0
    for i in range(frames):
        p = i / (frames - 1)
        ease = p * p * (3 - 2 * p)
        offsets.append((goal[0] * ease, goal[1] * ease + bend * 4 * p * (1 - p)))
    array = np.array(offsets, np.float32)
    return draw.Path(tuple(offsets)), np.diff(array, axis=0) * ACTION_SCALE


def action_prompt(scene: Scene, rng: random.Random, frames: int, fps: int, size: tuple[int, int]) -> str:
    from cosmos3_serve.generator.engines.diffusers.prompt import action_caption

    text = (
        words.caption(scene, rng)
        if rng.random() < 0.3
        else f"The gripper moves the {words.name_of(scene, scene.gripper)}."
    )
    view = rng.choice(("ego_view", "third_person_view", "third_person_view"))
    return action_caption(text, view_point=view, num_frames=frames, fps=fps, size=size)


# ---- workers --------------------------------------------------------------------------------------------------------


def _shares(count: int) -> list[int]:
    piece = 2_000
    return [min(piece, count - at) for at in range(0, count, piece)]


_POOL: ProcessPoolExecutor | None = None


def workers() -> int:
    return max(1, (os.cpu_count() or 2) - 1)


def _spread(work: Callable[[Any], Any], jobs: list[Any]) -> list[Any]:
    """Run in all cores. Call before anything touches a GPU: workers are forked."""
    global _POOL
    if len(jobs) == 1:
        return [work(jobs[0])]
    tok()
    if _POOL is None:
        import multiprocessing

        _POOL = ProcessPoolExecutor(workers(), mp_context=multiprocessing.get_context("fork"))
    return list(_POOL.map(work, jobs))


def spread(work: Callable[[Any], Any], jobs: list[Any]) -> list[Any]:
    return _spread(work, jobs)


def warm() -> None:
    """Start the workers."""
    _spread(abs, [1, 2])


def stop() -> None:
    """End the workers at once; they hold nothing."""
    if _POOL is not None:
        for process in list(_POOL._processes.values()):
            process.kill()
