"""What one sample may cost: tokens of one pass, and tokens times denoising steps. Checked at admission, and again where
the length is only known once a file was read (transfer).

A token is 32x32 pixels of four frames (a latent is 16x16 pixels of four frames, and a token 2x2 of those). The default
video, 189 frames of 1280x720, has 43,200 tokens and 1.5 million token steps; the budgets are about six and ten times
that, more than a GPU of 141 GB holds and ten minutes of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cosmos3_serve.contract.media import TEMPORAL_COMPRESSION
from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.errors import FieldError

TOKEN_SIDE: Final = 32
MAX_TOKENS: Final = 260_000
MAX_TOKEN_STEPS: Final = 15_000_000


def token_count(size: tuple[int, int], frames: int) -> int:
    """Tokens of one pass over `frames` of (width, height) pixels."""
    width, height = size
    return -(-width // TOKEN_SIDE) * -(-height // TOKEN_SIDE) * ((frames - 1) // TEMPORAL_COMPRESSION + 1)


def budget_findings(resolved: ResolvedSample, frames: int | None = None) -> Iterator[FieldError]:
    """
    Args:
        frames: of the whole clip, where it is made in several passes and its length is known.
    """
    if resolved.modality == "reasoner":
        return
    side = resolved.image_size if resolved.modality == "action" else 0
    size = resolved.size or ((side, side) if side else None)
    if size is None:
        return  # it follows the input media, which has limits of its own
    field = "action_chunk_size" if resolved.modality == "action" else "num_frames"
    tokens = token_count(size, resolved.frames)
    shown = f"{resolved.frames} frames of {size[0]}x{size[1]}"
    if tokens > MAX_TOKENS:
        most = MAX_TOKENS // token_count(size, 1) * TEMPORAL_COMPRESSION
        yield FieldError(
            field, f"{shown} are {tokens} tokens, more than {MAX_TOKENS}", f"ask for at most {most} frames"
        )
        return
    whole = max(tokens, token_count(size, frames)) if frames else tokens
    if whole * resolved.num_steps > MAX_TOKEN_STEPS:
        yield FieldError(
            "max_frames" if frames else "num_steps",
            f"{resolved.num_steps} steps over {whole} tokens are more than {MAX_TOKEN_STEPS} token steps",
            f"ask for at most {MAX_TOKEN_STEPS // whole} steps, or for fewer frames",
        )
