"""Stage 2: vision encoder and understanding tower, on questions about pictures, clips and written scenes.

Two small heads on the vision tokens tell colour and shape of what lies there; they speed learning up and are dropped.
Leaves `reasoner.pt`.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import layout
import numpy as np
import pools
import torch
import torch.nn.functional as F
import towers
from common import Average, Clock, Log, adam, autocast, device, half, on, pictures, save
from torch import Tensor

from cosmos3_serve.blockworld import draw, words
from cosmos3_serve.blockworld.scene import COLOURS, SHAPES, sample_scene

HEIGHTS = torch.tensor(draw._HEIGHTS)


class Prefix:
    """The ids before the first question for one kind and size of media: the same for all but two digits of times."""

    def __init__(self, kind: str, size: tuple[int, int], *, outer: bool = True) -> None:
        self.tokens = size[0] * size[1] // 1024 if kind != "text" else 0
        media = [] if kind == "text" else pools.vision_ids(kind, self.tokens, [0.1, 2.3], outer)
        ids = [*pools.encode("<|im_start|>user\n"), *media]
        self.kind, self.size, self.ids = kind, size, torch.tensor(ids, device=device())
        pad = pools.tok().token_to_id("<|video_pad|>" if kind == "video" else "<|image_pad|>")
        self.visual = self.ids == pad
        self.digits = torch.tensor([pools.tok().token_to_id(str(d)) for d in range(10)], device=device())
        # Where the whole seconds and tenths of the two times stand.
        self.at = [self._place(0), self._place(1)] if kind == "video" else []

    def _place(self, number: int) -> tuple[int, int]:
        opening = pools.encode("<0.1 seconds>")[0]
        begins = (self.ids == opening).nonzero().flatten().tolist()
        return begins[number] + 1, begins[number] + 3

    def batch(self, tenths: Tensor) -> Tensor:
        """[B, prefix] for times [B, 2] in tenths of seconds."""
        ids = self.ids.expand(len(tenths), -1).clone()
        for number, (whole, tenth) in enumerate(self.at):
            ids[:, whole] = self.digits[tenths[:, number] // 10]
            ids[:, tenth] = self.digits[tenths[:, number] % 10]
        return ids

    def positions(self, behind: int) -> Tensor:
        """[3, 1, prefix + behind]: text counts up, a picture's tokens lie in their grid."""
        columns, rows, place, index = [], self.visual.tolist(), 0, 0
        w, h = self.size[0] // 32, self.size[1] // 32
        while index < len(rows):
            if rows[index]:
                columns += [(place, place + y, place + x) for y in range(h) for x in range(w)]
                index, place = index + w * h, place + max(w, h)
            else:
                columns.append((place,) * 3)
                index, place = index + 1, place + 1
        columns += [(place + i,) * 3 for i in range(behind)]
        return torch.tensor(columns, device=device()).float().T.unsqueeze(1)


def forward(
    net: Any, vision: Any, prefix: Prefix, ids: Tensor, times: Tensor, frames: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Hidden states [B, L, D] of all tokens, and the vision tokens [B, n, D].

    Args:
        ids: behind the prefix [B, n]. frames: [B, 2 or 4, H, W, 3].
    """
    every = torch.cat([prefix.batch(times), ids], 1)
    embeds = net.embed_tokens(every)
    deep, seen = None, None
    if frames is not None:
        seen, features = towers.see(vision, frames)
        where = prefix.visual.nonzero().flatten()
        embeds = embeds.index_copy(1, where, seen.to(embeds.dtype))
        deep = [torch.zeros_like(embeds).index_copy(1, where, f.to(embeds.dtype)) for f in features]
    hidden, _ = towers.understand(net, embeds, prefix.positions(ids.shape[1]), deep)
    return hidden, seen


def cells(state: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Colour and shape [n, h*w] of what covers the middle of each cell of 32 x 32 pixels; 0 for nothing."""
    w, h = size[0] // 32, size[1] // 32
    unit = (size[0] * size[1]) ** 0.5 / 256
    x = ((torch.arange(w, device=state.device) + 0.5) * 32).expand(h, w).flatten()
    y = ((torch.arange(h, device=state.device) + 0.5) * 32)[:, None].expand(h, w).flatten()
    colour = torch.zeros(len(state), h * w, dtype=torch.long, device=state.device)
    shape = torch.zeros_like(colour)
    for k in range(draw.MAX_THINGS):
        f = state[:, draw.SCENE_FIELDS + k * draw.THING_FIELDS :][:, : draw.THING_FIELDS, None]
        kind = f[:, 0].clamp(min=0).long()
        wide = f[:, 5] * unit
        high = HEIGHTS.to(state.device)[kind] * wide
        near = (
            ((x - f[:, 2] * size[0]).abs() < wide / 2 + 12)
            & (y < f[:, 3] * size[1] + 12)
            & (y > f[:, 3] * size[1] - high - 12)
        )
        near = near & (f[:, 0] >= 0)
        colour = torch.where(near, f[:, 1].long() + 1, colour)
        shape = torch.where(near, kind + 1, shape)
    return colour, shape


def tenths(times: list[list[float]]) -> Tensor:
    """Times in seconds as the prompt shows them, with one decimal place, as whole tenths [B, 2]."""
    return torch.tensor([[round(float(f"{t:.1f}") * 10) for t in row] for row in times], device=device())


class Pool:
    def __init__(self, data: pools.Questions) -> None:
        self.state, self.ids = on(data.state), on(data.ids)
        self.learn, self.times = on(data.learn), tenths(data.times.tolist())


def train(
    out: Path, seconds: float, *, steps: int | None = None, scenes: int = 240_000, batch: int = 320,
    resume: Path | None = None, rate: float = 1.2e-3,
) -> None:  # fmt: skip
    shares = {"video": scenes // 2, "image": scenes // 4, "text": scenes // 4}
    data = {kind: pools.questions(n, kind, 100 + i) for i, (kind, n) in enumerate(shares.items())}
    log = Log(out, "reasoner")
    torch.manual_seed(2)
    rng = random.Random(2)
    pool = {kind: Pool(q) for kind, q in data.items()}
    net, vision = fresh()
    if resume is not None:
        load_into(net, vision, resume)
    extra = torch.nn.ModuleList(
        [torch.nn.Linear(layout.HIDDEN, 2 * (len(names) + 1)) for names in (COLOURS, SHAPES)]
    ).to(device())
    learned = [*und_parameters(net), *vision.parameters(), *extra.parameters()]
    optimizer, average = adam(learned, rate), None
    clock = Clock(seconds, rate, steps=steps)
    prefixes = {
        (kind, size, outer): Prefix(kind, size, outer=outer)
        for kind in pool for size in pools.SIZES for outer in (True, False)
    }  # fmt: skip
    while clock.running():
        kind = rng.choices(("video", "image", "text"), (6, 3, 2))[0]
        size = rng.choice(pools.SIZES)
        prefix = prefixes[kind, size, rng.random() < 0.8]
        own = pool[kind]
        pick = torch.randint(0, len(own.state), (batch,), device=device())
        ids, learn = own.ids[pick].long(), own.learn[pick]
        frames, state = None, own.state[pick]
        if kind == "video":
            frames = pictures(state.flatten(0, 1), size).unflatten(0, (batch, 4))
        elif kind == "image":
            frames = pictures(state[:, 0], size)[:, None].expand(-1, 2, -1, -1, -1)
        if frames is not None and rng.random() < 0.4:
            # Clips come out of codecs: soft edges, wrong levels, noise.
            frames = _worn(frames, rng)
        clock.tick(optimizer)
        with autocast():
            hidden, seen = forward(net, vision, prefix, ids, own.times[pick], frames)
            start = len(prefix.ids)
            mask = learn[:, 1:]
            logits = net.lm_head(hidden[:, start:-1][mask])
            loss = F.cross_entropy(logits.float(), ids[:, 1:][mask])
            side = torch.zeros((), device=device())
            if seen is not None:
                n = prefix.tokens
                pairs = seen.unflatten(1, (-1, n)).flatten(0, 1)
                moments = state if kind == "video" else state[:, :2]
                for head, labels in zip(
                    extra, zip(*(cells(moments[:, i::2].flatten(0, 1), size) for i in (0, 1)), strict=True), strict=True
                ):
                    told = head(pairs).unflatten(-1, (2, -1)).float()
                    for i in (0, 1):
                        side = side + F.cross_entropy(told[:, :, i].flatten(0, 1), labels[i].flatten())
        optimizer.zero_grad(set_to_none=True)
        (loss + 0.1 * side).backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        if average is None and clock.gone > 0.5:
            average = Average(learned, 0.998)
        elif average is not None:
            average.update()
        if clock.step % 20 == 0 or steps is not None:
            right = (logits.argmax(-1) == ids[:, 1:][mask]).float().mean()
            log(0.0 if steps else 8.0, step=clock.step, gone=clock.gone, kind=kind, loss=loss, side=side, right=right)
    if average is not None:
        average.swap()
    keep(out / "reasoner.pt", net, vision)
    log(step=clock.step, done=True)


def _worn(frames: Tensor, rng: random.Random) -> Tensor:
    b, f = frames.shape[:2]
    flat = frames.flatten(0, 1).permute(0, 3, 1, 2)
    if rng.random() < 0.7:
        factor = rng.uniform(0.35, 0.9)
        low = F.interpolate(flat, scale_factor=factor, mode="bilinear", antialias=True)
        flat = F.interpolate(low, flat.shape[-2:], mode="bilinear")
    gain = 1 + 0.06 * torch.randn(b, 1, 1, 1, 1, device=flat.device)
    shift = 0.03 * torch.randn(b, 1, 3, 1, 1, device=flat.device)
    flat = flat.unflatten(0, (b, f)) * gain + shift
    flat = flat + rng.uniform(0, 0.03) * torch.randn_like(flat)
    return flat.clamp(0, 1).permute(0, 1, 3, 4, 2)


def fresh() -> tuple[Any, Any]:
    """Transformer and vision encoder with weights as for training from nothing."""
    torch.manual_seed(0)
    net, vision = layout.new_transformer(), layout.new_vision()
    with torch.no_grad():
        for module in (net, vision):
            for name, p in module.named_parameters():
                if p.ndim > 1:
                    std = 0.02 if "embed" in name and "patch" not in name else p[0].numel() ** -0.5
                    if name.endswith(
                        ("to_out.weight", "to_add_out.weight", "down_proj.weight", "attn.proj.weight")
                    ) or ("blocks" in name and name.endswith("linear_fc2.weight")):
                        std *= 0.3
                    p.normal_(0, std)
        net.proj_out.weight.zero_()
        net.lm_head.weight.mul_(0.3)
        for table in (net.action_proj_in.fc, net.action_proj_out.fc):
            table.weight.zero_()
        net.action_proj_in.fc.weight[4].normal_(0, 0.3)
    return net.float().to(device()), vision.float().to(device())


def und_parameters(net: Any) -> list[torch.nn.Parameter]:
    return [p for name, p in net.named_parameters() if not is_generation(name)]


def gen_parameters(net: Any) -> list[torch.nn.Parameter]:
    return [p for name, p in net.named_parameters() if is_generation(name)]


def is_generation(name: str) -> bool:
    """Whether a parameter of the transformer belongs to the generation tower."""
    own = ("moe_gen", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "norm_added", "time_embedder", "action_")
    return any(part in name for part in own) or name.startswith(("proj_in", "proj_out"))


def keep(path: Path, net: Any, vision: Any) -> None:
    save(path, net={k: v for k, v in half(net).items() if not is_generation(k)}, vision=half(vision))


def load_into(net: Any, vision: Any, path: Path) -> None:
    kept = torch.load(path, map_location="cpu", weights_only=True)
    net.load_state_dict({k: v.float() for k, v in kept["net"].items()}, strict=False)
    vision.load_state_dict({k: v.float() for k, v in kept["vision"].items()})


# ---- asking ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def answers(
    net: Any, vision: Any, prefix: Prefix, frames: Tensor, times: Tensor, asked: list[str], most: int = 40
) -> list[str]:
    """Greedy answers to one question each about frames [B, 2 or 4, H, W, 3]."""
    texts = [pools.encode(f"{q}<|im_end|>\n<|im_start|>assistant\n") for q in asked]
    lengths = torch.tensor([len(t) for t in texts], device=device())
    ids = torch.zeros(len(asked), int(lengths.max()) + most, dtype=torch.long, device=device())
    for i, t in enumerate(texts):
        ids[i, : len(t)] = torch.tensor(t, device=device())
    end = pools.tok().token_to_id("<|im_end|>")
    done = torch.zeros(len(asked), dtype=torch.bool, device=device())
    row = torch.arange(len(asked), device=device())
    start = len(prefix.ids)
    for step in range(most):
        with autocast():
            hidden, _ = forward(net, vision, prefix, ids, times, frames)
            token = net.lm_head(hidden[row, start + lengths + step - 1]).argmax(-1)
        done |= token == end
        ids[row, lengths + step] = torch.where(done, end, token)
        if bool(done.all()):
            break
    out = []
    for i in range(len(asked)):
        own = ids[i, int(lengths[i]) :].tolist()
        own = own[: own.index(end)] if end in own else [t for t in own if t]
        out.append(pools.tok().decode(own))
    return out


def evaluate(net: Any, vision: Any, count: int, seed: int = 9, most: int = 40) -> dict[str, Any]:
    """Share of right answers, greedy, on held-out scenes: one question to each picture or clip, all kinds in turn."""
    rng = random.Random(seed)
    by_kind: dict[str, list[bool]] = {}
    missed: list[tuple[str, str, str]] = []
    for kind in ("video", "image"):
        for size in pools.SIZES:
            n = count // 4
            rows, asked, right, kinds, times = [], [], [], [], []
            for _ in range(n):
                scene = sample_scene(rng, moving=kind == "video", held_out=True)
                turns = words.questions(scene, rng, video=kind == "video")
                turn = turns[0]
                frames, fps = rng.choice(pools.FRAME_COUNTS), rng.choice(pools.FPS)
                moments = [p / (frames - 1) for p in pools.sampled(frames, fps)] if kind == "video" else [0.0, 0.0]
                rows.append(draw.states(scene, moments))
                times.append(pools.stamps(frames, fps)[:2])
                asked.append(turn.question)
                right.append(turn.answer)
                kinds.append(f"{kind}:{turn.kind}")
            state = on(np.stack(rows))
            seen = pictures(state.flatten(0, 1), size).unflatten(0, state.shape[:2])
            told = answers(net, vision, Prefix(kind, size), seen, tenths(times), asked, most)
            for q, a, t, k in zip(asked, right, told, kinds, strict=True):
                by_kind.setdefault(k, []).append(a == t)
                if a != t:
                    missed.append((q, a, t))
    every = [ok for row in by_kind.values() for ok in row]
    return {
        "right": sum(every) / len(every), "count": len(every),
        "by_kind": {k: [sum(v), len(v)] for k, v in sorted(by_kind.items())}, "missed": missed[:25],
    }  # fmt: skip
