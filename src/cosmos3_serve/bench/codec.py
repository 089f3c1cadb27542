"""Choose the codec of the clips: one of which the server says that it saw the video."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import av
import httpx

from cosmos3_serve.bench.seen import video_tokens
from cosmos3_serve.bench.videos import CODECS, MIME, Recipe, make_video
from cosmos3_serve.errors import Cosmos3Error, InputError, Unauthorized, Unreachable
from cosmos3_serve.reasoner_client.ask import Reasoner, data_url

AUTO = "auto"
# Small, but some video tokens more than a text prompt may differ by.
TRIAL = Recipe(seconds=2, fps=2, width=256, height=256)


async def choose_codec(
    reasoner: Reasoner, codecs: Sequence[str] = tuple(CODECS), *, facts: dict[str, str] | None = None
) -> str:
    """The first of `codecs` that the server decodes, tried with a clip of 2 s each as a data URL.

    Args:
        facts: gets what the headers of the last answer say.

    Raises:
        Unauthorized, Unreachable: the server cannot be asked.
        InputError: it decodes none of them (code `no_codec`), with what it said of each.
    """
    refused = []
    try:
        words = await reasoner.ask("What is this?", max_tokens=1)
        text_tokens = int(words.usage.get("prompt_tokens") or 0)
        with tempfile.TemporaryDirectory(prefix="bench-codec-") as folder:
            for codec in codecs:
                if CODECS[codec][0] not in av.codecs_available:
                    refused.append(f"{codec}: this machine cannot encode it")
                    continue
                place = Path(folder) / codec
                place.mkdir()
                recipe = TRIAL.model_copy(update={"codec": codec})
                video = await asyncio.to_thread(make_video, place, 0, recipe)
                url = await asyncio.to_thread(clip_url, place / video.name)
                why = await _refusal(reasoner, url, text_tokens, facts)
                if why is None:
                    return codec
                refused.append(f"{codec}: {why}")
    except httpx.HTTPError as error:
        raise Unreachable(f"the server broke off: {type(error).__name__}") from None
    raise InputError(
        f"the server decodes none of the codecs ({'; '.join(refused)})",
        code="no_codec",
        remedy="check that the model takes videos, or name other codecs with --codec",
    )


async def _refusal(reasoner: Reasoner, url: str, text_tokens: int, facts: dict[str, str] | None) -> str | None:
    try:
        answer = await reasoner.ask("What is this?", url, max_tokens=1)
    except (Unauthorized, Unreachable):
        raise
    except Cosmos3Error as error:
        return str(error)[:120]
    if facts is not None:
        facts |= answer.facts
    return None if video_tokens(answer.usage, text_tokens) else "the usage counts no tokens of the video"


def clip_url(path: Path) -> str:
    """A clip as a data URL of its own type. Blocking."""
    return data_url(path).replace("video/mp4", MIME[path.suffix[1:]], 1)
