"""The table of the card: held-out prompts generated, and measured by code that knows pixels only."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pools
import torch
import train_vae
from common import autocast, on, pictures
from sampling import generate
from train_reasoner import Prefix, answers, evaluate, tenths

from cosmos3_serve.blockworld import draw, measure, score, words
from cosmos3_serve.blockworld.scene import COLOURS, Scene, sample_grasp, sample_scene


def _objects(picture: np.ndarray) -> list[tuple[str, str]]:
    return sorted(seen.name for seen in measure.objects(picture))


def prompts(count: int, *, moving: bool, seed: int) -> tuple[list[Scene], list[str]]:
    """Held-out scenes with exactly one caption each; clips have at least one event."""
    rng = random.Random(seed)
    scenes: list[Scene] = []
    while len(scenes) < count:
        scene = sample_scene(rng, moving=moving, held_out=True)
        if scene.events or not moving:
            scenes.append(scene)
    return scenes, [words.caption(scene, rng) for scene in scenes]


def images(parts: Any, count: int, seed: int = 21, **how: Any) -> tuple[float, np.ndarray, list[str]]:
    """Share of pictures whose colours, shapes and count are all those asked for."""
    scenes, texts = prompts(count, moving=False, seed=seed)
    size = (256, 256)
    out = generate(*parts, [pools.metadata(t, 1, 24, size) for t in texts], 1, size, **how)
    seen = pools.spread(_objects, [clip[0] for clip in out])
    right = [s == score.names(scene) for s, scene in zip(seen, scenes, strict=True)]
    return sum(right) / count, out[:, 0], texts


def clips(
    parts: Any, count: int, frames: int, size: tuple[int, int], seed: int = 22, **how: Any
) -> tuple[float, np.ndarray, list[str], list[Any]]:
    scenes, texts = prompts(count, moving=True, seed=seed)
    made = [
        generate(
            *parts,
            [pools.metadata(t, frames, 24, size) for t in texts[at : at + 100]],
            frames,
            size,
            **{**how, "seed": how.get("seed", 0) + at},
        )
        for at in range(0, count, 100)
    ]
    out = np.concatenate(made)
    seen = pools.spread(measure.tracks, list(out))
    right = [score.obeyed(scene, tracks) for scene, tracks in zip(scenes, seen, strict=True)]
    return sum(right) / count, out, texts, seen


def continued(
    parts: Any, count: int, frames: int, size: tuple[int, int], clean: int = 1, seed: int = 23, **how: Any
) -> dict[str, float]:
    """image2video and video2video: PSNR of the given frames, and share of motions right."""
    scenes, texts = prompts(count, moving=True, seed=seed)
    state = on(np.stack([draw.states(s, draw.progress(frames)) for s in scenes]))
    real = pictures(state.flatten(0, 1), size).unflatten(0, state.shape[:2])
    out = generate(
        *parts, [pools.metadata(t, frames, 24, size) for t in texts], frames, size, given=real, clean=clean, **how
    )
    kept = (clean - 1) * 4 + 1
    truth = (real.cpu().numpy() * 255 + 0.5).astype(np.uint8)
    first = [measure.psnr(o[:kept], t[:kept]) for o, t in zip(out, truth, strict=True)]
    seen = pools.spread(measure.tracks, list(out))
    right = [score.obeyed(scene, tracks) for scene, tracks in zip(scenes, seen, strict=True)]
    return {"psnr_mean": float(np.mean(first)), "psnr_min": float(np.min(first)), "motion": sum(right) / count}


def dynamics(parts: Any, count: int, seed: int = 24, **how: Any) -> dict[str, float]:
    """Forward dynamics: distance between where the held object ends and where the actions lead, in picture widths."""
    rng = random.Random(seed)
    frames, size = 17, (320, 192)
    rows, texts, moves, goals = [], [], [], []
    for _ in range(count):
        scene = sample_grasp(rng, held_out=True)
        path, actions = pools.wander(rng, scene, frames)
        rows.append(draw.states(scene, draw.progress(frames), path))
        texts.append(pools.action_prompt(scene, rng, frames, 24, size))
        moves.append(actions)
        thing = scene.things[scene.gripper]
        goals.append((COLOURS[thing.colour], path.offsets[-1]))
    state = on(np.stack(rows))
    real = pictures(state.flatten(0, 1), size).unflatten(0, state.shape[:2])
    wide = torch.zeros(count, frames - 1, 16, device=state.device)
    wide[:, :, :2] = on(np.stack(moves))
    out = generate(*parts, texts, frames, size, given=real, clean=1, actions=wide, **{**how, "guidance": 1.0})
    truth = (real.cpu().numpy() * 255 + 0.5).astype(np.uint8)
    gaps = []
    for clip, real_clip, (colour, _) in zip(out, truth, goals, strict=True):
        mine = [s for s in measure.objects(clip[-1]) if s.colour == colour]
        theirs = [s for s in measure.objects(real_clip[-1]) if s.colour == colour]
        if len(mine) == len(theirs) == 1:
            gaps.append(float(np.hypot(mine[0].x - theirs[0].x, mine[0].y - theirs[0].y)))
        elif theirs:
            gaps.append(1.0)
    return {"median_gap": float(np.median(gaps)), "within_5_percent": float(np.mean(np.array(gaps) < 0.05))}


def asked_of(tracks: list[measure.Track], rng: random.Random) -> tuple[str, str] | None:
    """A question about a clip and its answer by the measure; None where the measure found nothing."""
    if not tracks:
        return None
    track = rng.choice(tracks)
    colour, shape = track.colour, track.shape
    kind = rng.randrange(4)
    if kind == 0:
        return "How many objects are there?", words.COUNTS[min(3, len(tracks))]
    if kind == 1 and sum(t.shape == shape for t in tracks) == 1:
        return f"What colour is the {shape}?", colour
    if kind == 2 and sum(t.colour == colour for t in tracks) == 1:
        return f"What shape is the {colour} object?", shape
    return f"What does the {colour} {shape} do?", f"it {track.motion}"


def agreement(
    net: Any, vision: Any, made: np.ndarray, seen: list[Any], size: tuple[int, int], seed: int = 5
) -> dict[str, Any]:
    """The reasoner about clips that the generator made: share of answers that agree with the measure."""
    rng = random.Random(seed)
    frames = made.shape[1]
    pairs = [(i, asked_of(tracks, rng)) for i, tracks in enumerate(seen)]
    kept = [(i, p) for i, p in pairs if p is not None]
    if not kept:
        return {"agrees": 0.0, "count": 0, "missed": []}
    picked = pools.sampled(frames, 24)
    shown = on(made[[i for i, _ in kept]][:, picked]).float() / 255
    times = tenths([pools.stamps(frames, 24)[:2]] * len(kept))
    told = answers(net, vision, Prefix("video", size), shown, times, [p[0] for _, p in kept])
    right = [t == p[1] for t, (_, p) in zip(told, kept, strict=True)]
    missed = [(texts, t) for (_, texts), t in zip(kept, told, strict=True) if texts[1] != t][:15]
    return {"agrees": sum(right) / len(right), "count": len(right), "missed": missed}


@torch.no_grad()
def ceiling(codec: Path, count: int = 100, log: Any = print) -> dict[str, float]:
    """What the codec alone leaves of drawn pictures and clips: shares that the measure still reads right, with and
    without noise on the latents (in deviations)."""
    vae, _, std = train_vae.load(codec)
    result: dict[str, float] = {}
    for frames, size in ((1, (256, 256)), (9, (320, 192)), (17, (320, 192))):
        scenes, _ = prompts(count, moving=frames > 1, seed=31)
        state = on(np.stack([draw.states(s, draw.progress(frames)) for s in scenes]))
        real = pictures(state.flatten(0, 1), size).unflatten(0, state.shape[:2])
        kept = train_vae.latents(vae, real)
        for noise in (0.0, 0.3):
            z = kept + noise * std * torch.randn_like(kept)
            with autocast():
                back = torch.cat([train_vae.decode(vae, part).clamp(0, 1) for part in z.split(16)])
            shown = list((back * 255 + 0.5).to(torch.uint8).cpu().numpy())
            right = [score.clip_shows(scene, clip) for scene, clip in zip(scenes, shown, strict=True)]
            name = f"{frames}_noise_{noise}"
            result[name] = sum(right) / count
            result[f"{name}_psnr"] = float(-10 * torch.log10((back - real).square().mean()))
            log(f"{frames} frames, noise {noise}", [result[name], result[f"{name}_psnr"]])
    return result


def table(
    net: Any, vision: Any, codec: Path, count: int = 200, log: Any = print, brief: bool = False
) -> dict[str, Any]:
    """
    Args:
        codec: beside it `images.npz` and `clips.npz` show the first of what was generated.
        brief: two steps and short answers, for a dry run.
    """
    vae, mean, std = train_vae.load(codec)
    net.eval(), vision.eval()
    parts = (net, vae, mean, std)
    wide = (320, 192)
    result: dict[str, Any] = {}

    def note(name: str, value: Any) -> None:
        result[name] = value
        log(name, value)

    picture: dict[str, Any] = {"steps": 2 if brief else 50, "guidance": 4.0, "shift": 3.0}
    clip: dict[str, Any] = {"steps": 2 if brief else 35, "guidance": 6.0, "shift": 10.0, "negative": pools.NEGATIVE}
    share, shown, texts = images(parts, count, **picture)
    note("text2image", share)
    np.savez_compressed(codec.parent / "images.npz", shown=shown[:24], texts=np.array(texts[:24]))
    note("text2image_guidance_1", images(parts, count, **{**picture, "guidance": 1.0})[0])
    share, made, texts, seen = clips(parts, count, 9, wide, **clip)
    note("text2video_9", share)
    np.savez_compressed(codec.parent / "clips.npz", made=made[:8], texts=np.array(texts[:8]))
    note("agreement", agreement(net, vision, made, seen, wide))
    note("image2video", continued(parts, min(count, 100), 9, wide, **clip))
    note("reasoner", evaluate(net, vision, 4 * count, most=4 if brief else 40))
    return result


def validate(
    net: Any, vision: Any, codec: Path, count: int = 60, log: Any = print, brief: bool = False
) -> dict[str, Any]:
    """The rows that training is steered by, on scenes drawn from other seeds than those of the card's table."""
    vae, mean, std = train_vae.load(codec)
    net.eval(), vision.eval()
    parts = (net, vae, mean, std)
    wide = (320, 192)
    clip: dict[str, Any] = {"steps": 2 if brief else 35, "guidance": 6.0, "shift": 10.0, "negative": pools.NEGATIVE}
    result: dict[str, Any] = {}

    def note(name: str, value: Any) -> None:
        result[name] = value
        log(name, value)

    note("text2image", images(parts, count, 121, steps=2 if brief else 50, guidance=4.0, shift=3.0)[0])
    share, made, _, seen = clips(parts, count, 9, wide, 122, **clip)
    note("text2video_9", share)
    note("agreement", agreement(net, vision, made, seen, wide, 105))
    note("text2video_9_square", clips(parts, count, 9, (256, 256), 122, **clip)[0])
    note("text2video_17", clips(parts, count, 17, wide, 122, **clip)[0])
    note("dynamics", dynamics(parts, count, 124, steps=2 if brief else 30, guidance=1.0, shift=10.0))
    return result


def more(net: Any, vision: Any, codec: Path, count: int = 100, log: Any = print) -> dict[str, Any]:
    """Other steps, guidance and lengths."""
    vae, mean, std = train_vae.load(codec)
    net.eval(), vision.eval()
    parts = (net, vae, mean, std)
    wide = (320, 192)
    result: dict[str, Any] = {}

    def note(name: str, value: Any) -> None:
        result[name] = value
        log(name, value)

    clip: dict[str, Any] = {"shift": 10.0, "negative": pools.NEGATIVE}
    for steps in (4, 8, 12, 20):
        note(f"text2image_steps_{steps}", images(parts, count, steps=steps, guidance=4.0, shift=3.0)[0])
    for steps, guidance in ((8, 6.0), (12, 6.0), (20, 6.0), (35, 1.0), (35, 3.0)):
        note(
            f"text2video_9_steps_{steps}_guidance_{guidance}",
            clips(parts, count, 9, wide, steps=steps, guidance=guidance, **clip)[0],
        )
    note("text2video_17", clips(parts, count, 17, wide, steps=35, guidance=6.0, **clip)[0])
    note("text2video_9_square", clips(parts, count, 9, (256, 256), steps=35, guidance=6.0, **clip)[0])
    note("video2video", continued(parts, count, 9, wide, 2, steps=35, guidance=6.0, **clip))
    note("dynamics", dynamics(parts, count, steps=30, guidance=1.0, shift=10.0))
    return result
