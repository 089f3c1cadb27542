"""Text to token ids: the chat template around a prompt, then the marker after which vision tokens follow."""

from __future__ import annotations

import json
import math
from typing import Any

# How the action model was told of the camera in training (source: diffusers 0.42, framework's action prompt).
_FRAMING = {
    "ego_view": "This video is captured from a first-person perspective looking at the scene.",
    "third_person_view": (
        "This video is captured from a third-person perspective looking towards the agent from the front."
    ),
    "wrist_view": "This video is captured from a wrist-mounted camera.",
    "concat_view": "This video contains concatenated views from multiple camera perspectives.",
}
_RATIOS = ("1,1", "4,3", "3,4", "16,9", "9,16")


class PromptEncoder:
    """Args:
    tokenizer: a Hugging Face tokenizer with a chat template.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._suffix = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|vision_start|>")]

    def ids(self, text: str) -> tuple[int, ...]:
        """Token ids of a user message of `text`. No system prompt: Nano was configured without one."""
        encoded = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            tokenize=True,
            add_generation_prompt=True,
            add_vision_id=False,
            return_dict=True,
        )
        return (*encoded["input_ids"], *self._suffix)


def action_caption(text: str, *, view_point: str, num_frames: int, fps: float, size: tuple[int, int]) -> str:
    """The JSON caption that action samples carry instead of sentences (source: framework, action prompt).

    Args:
        size: (width, height) of the canvas that the frames were padded to.
    """
    width, height = size
    seconds = num_frames / fps
    minutes, rest = divmod(round(seconds), 60)
    description = text.strip()
    if description and not description.endswith((".", "!", "?")):
        description += "."
    ratio = min(_RATIOS, key=lambda r: abs(int(r.split(",")[0]) / int(r.split(",")[1]) - width / height))
    return json.dumps(
        {
            "cinematography": {"framing": _FRAMING[view_point]},
            "actions": [{"time": f"0:00-{minutes}:{rest:02d}", "description": description}],
            "duration": f"{math.floor(seconds)}s",
            "fps": float(fps),
            "resolution": {"H": height, "W": width},
            "aspect_ratio": ratio,
        }
    )
