"""How many prompt tokens came from the video: as the server counts them, else what the prompt has above its text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Questions differ a little in length; fewer tokens than this above a text prompt are no video.
SLACK_TOKENS = 16


def video_tokens(usage: Mapping[str, Any], text_tokens: int) -> int | None:
    """
    Args:
        usage: of an answer.
        text_tokens: of a prompt that has no video.

    Returns:
        None where the usage counts no prompt tokens at all.
    """
    kinds = (usage.get("prompt_tokens_details") or {}).get("multimodal_tokens") or {}
    if isinstance(kinds.get("video"), int):
        return int(kinds["video"])
    return above_text(usage.get("prompt_tokens"), text_tokens)


def above_text(prompt_tokens: float | None, text_tokens: int) -> int | None:
    """What a prompt has above its text; 0 where that is too little for a video."""
    return None if prompt_tokens is None else max(0, int(prompt_tokens) - text_tokens - SLACK_TOKENS)
