"""Small media files for tests: moving shapes, so that every frame and every place differs."""

import json
from collections.abc import Sequence
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
from PIL import Image


def picture(width: int, height: int, shift: int = 0) -> np.ndarray:
    """A gradient with a bright square that `shift` moves."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    frame = np.stack([(x * 2 + shift * 3) % 256, (y * 2) % 256, (x + y + shift * 5) % 256], axis=-1).astype(np.uint8)
    left = (10 + 4 * shift) % max(width - 20, 1)
    frame[10:30, left : left + 20] = (250, 240, 20)
    return frame


def frames(count: int, width: int = 320, height: int = 192) -> np.ndarray:
    return np.stack([picture(width, height, i) for i in range(count)])


def write_video(path: Path, content: np.ndarray, fps: float = 24, *, output_params: Sequence[str] = ()) -> Path:
    imageio.mimsave(
        path, list(content), format="FFMPEG", fps=fps, quality=9, macro_block_size=1, output_params=list(output_params)
    )
    return path


def write_all(folder: Path) -> dict[str, str]:
    """Named files in `folder`; all at the size that 256 at 16,9 resolves to, unless the name says otherwise."""
    Image.fromarray(picture(320, 192)).save(folder / "image.png")
    write_video(folder / "clip.mp4", frames(13))
    write_video(folder / "wide.mp4", frames(9, 400, 200), fps=10)
    for index, hint in enumerate(("edge", "blur", "depth", "seg", "wsm")):
        write_video(folder / f"{hint}.mp4", np.roll(frames(6), 40 * index, axis=2))
    Image.fromarray(picture(256, 256)).save(folder / "control.png")
    actions = [[round(0.01 * (i + j), 3) for j in range(10)] for i in range(6)]
    (folder / "actions.json").write_text(json.dumps(actions))
    return {path.name: str(path) for path in folder.iterdir()}
