"""Stage 3: the generation tower, by flow matching on the codec's latents, under prompts read by the frozen text tower.

A tenth of what is learnt is learnt under the empty or the negative prompt, so that guidance has its other branch.
Leaves `generator.pt`.
"""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pools
import torch
import towers
import train_vae
from common import Average, Clock, Log, adam, autocast, device, half, on, pictures, save
from recorder import Recorder
from torch import Tensor
from train_reasoner import fresh, gen_parameters, is_generation, load_into

DOMAIN = 4  # pusht: two numbers an action


@dataclass(frozen=True)
class Kind:
    """One layout of samples: how many of its scenes, how often and how many at once."""

    name: str
    frames: int
    size: tuple[int, int]
    share: float
    weight: int
    batch: int


KINDS = (
    Kind("scene", 1, (256, 256), 0.5, 14, 256),
    Kind("scene", 1, (320, 192), 0.08, 2, 256),
    Kind("scene", 9, (320, 192), 0.2, 12, 128),
    Kind("scene", 9, (256, 256), 0.06, 4, 128),
    Kind("follow", 9, (320, 192), 0.03, 2, 128),
    Kind("scene", 17, (320, 192), 0.05, 4, 64),
    Kind("action", 17, (320, 192), 0.08, 5, 64),
)  # fmt: skip


@dataclass
class Samples:
    kind: Kind
    latents: Tensor
    ids: Tensor
    lengths: Tensor
    fps: Tensor
    actions: Tensor | None


def draw_scenes(out: Path, scenes: int, seed: int) -> list[pools.Prompts]:
    """Scenes of every kind, kept in `out` so that they can be drawn while another stage trains."""
    path = out / f"scenes-{seed}-{scenes}.pickle"
    if path.is_file():
        kept: list[pools.Prompts] = pickle.loads(path.read_bytes())
        return kept
    made = [
        pools.prompts(max(2, int(scenes * k.share)), k.name, k.frames, k.size, seed * 100 + i)
        for i, k in enumerate(KINDS)
    ]
    out.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(pickle.dumps(made, protocol=5))
    partial.rename(path)
    return made


def encode_pool(data: pools.Prompts, kind: Kind, vae: Any, mean: Tensor, std: Tensor, batch: int = 96) -> Samples:
    kept = []
    state = on(data.state)
    for at in range(0, len(state), batch):
        rows = state[at : at + batch]
        frames = pictures(rows.flatten(0, 1), kind.size).unflatten(0, rows.shape[:2])
        kept.append(((train_vae.latents(vae, frames) - mean) / std).to(torch.bfloat16))
    actions = None
    if data.actions is not None:
        wide = torch.zeros(*data.actions.shape[:2], 16)
        wide[:, :, :2] = torch.from_numpy(data.actions)
        actions = wide.to(device())
    return Samples(kind, torch.cat(kept), on(data.ids), on(data.lengths), on(data.fps), actions)


def sigmas(count: int, frames: int, rng: random.Random) -> Tensor:
    """Noise levels, more of the high ones for clips, as the schedules of the modes have them."""
    u = torch.rand(count, device=device())
    shift = rng.choice((1.0, 3.0, 3.0)) if frames == 1 else rng.choice((1.0, 4.0, 10.0))
    return (shift * u / (1 + (shift - 1) * u)).clamp(1e-3, 0.9995)


def train(
    out: Path, seconds: float, codec: Path, reasoner: Path, *, steps: int | None = None, scenes: int = 90_000,
    resume: Path | None = None, rate: float = 1.5e-3, scale: float = 1.0, seed: int = 3,
) -> None:  # fmt: skip
    data = draw_scenes(out, scenes, seed)
    log = Log(out, "generator")
    log(note="scenes are drawn")
    torch.manual_seed(seed)
    rng = random.Random(seed)
    vae, mean, std = train_vae.load(codec)
    clock = Clock(seconds, rate, steps=steps)
    samples = [encode_pool(d, k, vae, mean, std) for d, k in zip(data, KINDS, strict=True)]
    log(note="scenes are encoded", seconds=clock.gone * seconds, level=samples[0].latents.float().std())
    net, vision = fresh()
    load_into(net, vision, reasoner)
    if resume is not None:
        kept = torch.load(resume, map_location="cpu", weights_only=True)["net"]
        net.load_state_dict({k: v.float() for k, v in kept.items()}, strict=False)
    for p in net.parameters():
        p.requires_grad_(False)
    learned = gen_parameters(net)
    for p in learned:
        p.requires_grad_(True)
    said = [read_all(net, s) for s in samples]
    blank = [prompt(net, text) for text in ("", pools.NEGATIVE)]
    log(note="prompts are read", seconds=clock.gone * seconds)
    optimizer, average = adam(learned, rate), None

    def step_loss(inputs: list[Tensor], clean: int) -> Tensor:
        noisy, goal, sigma, keys, lengths, fps, *actions = inputs
        layers = [(keys[:, 2 * i], keys[:, 2 * i + 1]) for i in range(keys.shape[1] // 2)]
        with autocast():
            asked = towers.Prompt(layers, lengths)
            told = towers.denoise(net, noisy, sigma, clean, asked, fps, next(iter(actions), None), DOMAIN)
        return (told.float() - goal)[:, :, clean:].square().mean()

    recorder = Recorder(step_loss, learned)
    clock.warm = 0.02 + clock.gone
    while clock.running():
        number = rng.choices(range(len(samples)), [s.kind.weight for s in samples])[0]
        own = samples[number]
        count = max(2, int(own.kind.batch * scale))
        clean = 0
        if own.kind.name == "action":
            clean = 1
        elif own.kind.name == "follow" or (own.kind.frames > 1 and rng.random() < 0.15):
            clean = rng.choice((1, 1, 2))
        pick = torch.randint(0, len(own.latents), (count,), device=device())
        x0 = own.latents[pick].float()
        sigma = sigmas(count, own.kind.frames, rng)
        noise = torch.randn_like(x0)
        level = sigma.view(-1, 1, 1, 1, 1)
        noisy = (1 - level) * x0 + level * noise
        if clean:
            noisy[:, :, :clean] = x0[:, :, :clean]
        unasked = own.kind.name != "action" and rng.random() < 0.1
        if unasked:
            words = blank[0 if own.kind.frames == 1 else rng.choice((0, 1, 1, 1))].expand(count)
            keys = torch.stack([t for pair in words.layers for t in pair], 1)
            lengths = words.lengths
        else:
            keys, lengths = said[number][pick], own.lengths[pick]
        inputs = [noisy, noise - x0, sigma, keys, lengths, own.fps[pick]]
        if own.actions is not None:
            inputs.append(own.actions[pick])
        clock.tick(optimizer)
        loss = recorder.step(inputs, clean)
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        if average is None and clock.step > 300:
            average = Average(learned, 0.999)
        elif average is not None and clock.step % 2 == 0:
            average.update()
        if clock.step % 25 == 0 or steps is not None:
            log(
                0.0 if steps else 10.0, step=clock.step, gone=clock.gone, frames=own.kind.frames, clean=clean, loss=loss
            )
    if average is not None:
        average.swap()
    save(out / "generator.pt", net={k: v for k, v in half(net).items() if is_generation(k)})
    log(step=clock.step, done=True)


def read_all(net: Any, samples: Samples) -> Tensor:
    """Keys and values [n, 2 * layers, kv, L, d] of all prompts, bfloat16."""
    kept = []
    limit = int(samples.lengths.max())
    for at in range(0, len(samples.ids), 512):
        with autocast():
            read = towers.read_prompts(net, samples.ids[at : at + 512, :limit].long(), samples.lengths[at : at + 512])
        kept.append(torch.stack([t.to(torch.bfloat16) for pair in read.layers for t in pair], 1))
    return torch.cat(kept)


def prompt(net: Any, text: str) -> towers.Prompt:
    ids = torch.tensor([pools.prompt_ids(text)], device=device())
    with autocast():
        return towers.read_prompts(net, ids, torch.tensor([ids.shape[1]], device=device()))


def unpack(checkpoint: Path, out: Path) -> None:
    """Write `vae.pt`, `reasoner.pt` and `generator.pt` of an exported checkpoint."""
    from safetensors.torch import load_file

    config = json.loads((checkpoint / "vae" / "config.json").read_text(encoding="utf-8"))
    codec = load_file(checkpoint / "vae" / "diffusion_pytorch_model.safetensors")
    save(out / "vae.pt", vae=codec, mean=config["latents_mean"], std=config["latents_std"])
    net = load_file(checkpoint / "transformer" / "diffusion_pytorch_model.safetensors")
    vision = load_file(checkpoint / "vision_encoder" / "model.safetensors")
    save(out / "reasoner.pt", net={k: v for k, v in net.items() if not is_generation(k)}, vision=vision)
    save(out / "generator.pt", net={k: v for k, v in net.items() if is_generation(k)})
