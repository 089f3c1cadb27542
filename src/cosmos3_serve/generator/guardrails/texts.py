"""The texts of a sample that are checked: everything a client wrote that reaches a model as words.

Hints carry no prompts of their own, only paths and presets. The service's own negative prompt is not the client's text
and is not checked; neither is an empty one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cosmos3_serve.contract.prompt import negative_text, prompt_text
from cosmos3_serve.contract.resolved import ResolvedSample

# Any of these makes the negative text the client's.
_NEGATIVE = (
    "negative_prompt",
    "negative_prompt_file",
    "inverse_duration_template",
    "inverse_resolution_template",
)
# Words that the action caption quotes.
_LABELS = ("view_point",)


def texts_of(asked: Mapping[str, Any], resolved: ResolvedSample) -> list[tuple[str, str]]:
    """(field, text) of what is to be checked, as the model will read it: with templates filled in.

    Args:
        asked: the sample as the client wrote it; text objects are folded into `resolved` already.
    """
    plain = resolved.modality in ("action", "reasoner")  # their captions are made by the engine, around these words
    texts = [("prompt", (resolved.prompt or "") if plain else prompt_text(resolved))]
    if any(asked.get(name) is not None for name in _NEGATIVE):
        texts.append(("negative_prompt", negative_text(resolved)))
    if resolved.modality == "action":
        texts += [(name, str(asked[name])) for name in _LABELS if asked.get(name) is not None]
    return [(name, text) for name, text in texts if text.strip()]
