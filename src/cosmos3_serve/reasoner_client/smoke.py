"""The smoke test of a reasoner: one synthetic video, one question, an answer that shows that the video was seen."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from cosmos3_serve.errors import ContractViolation, Cosmos3Error
from cosmos3_serve.reasoner_client.ask import Answer, Reasoner, data_url
from cosmos3_serve.reasoner_client.served import until_served
from cosmos3_serve.reasoner_client.synthetic_video import make_video

QUESTION = "Describe this video in one sentence."
SECONDS = 30
MAX_TOKENS = 64
VIDEO = "video-00000.mp4"

Serve = Callable[[Path], AbstractContextManager[str]]


async def smoke(
    reasoner: Reasoner,
    *,
    seconds: int | None = None,
    serve: Serve | None = None,
    say: Callable[[str], None] = lambda text: None,
    on_wait: Callable[[Cosmos3Error, float], None] = lambda why, seconds: None,
) -> dict[str, Any]:
    """Ask, check, and tell.

    The video goes as data, so that the same test runs against servers without a files API.

    Args:
        seconds: length of the video; default: `SECONDS`.
        serve: makes the file available for as long as a block lasts and gives its URL; the server fetches it there.

    Raises:
        ContractViolation: code `smoke_failed`: an empty answer, or one whose prompt held no video.
        ServiceFailure: code `video_not_served`: the URL does not lead to the video.
        Cosmos3Error: as `Reasoner.ask`.
    """
    seconds = SECONDS if seconds is None else seconds
    with ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cosmos3-smoke-"))) / VIDEO
        made_by = await asyncio.to_thread(make_video, path, seconds=seconds)
        size = path.stat().st_size
        say(f"made a video of {seconds} s with {made_by} ({size} bytes)")
        if serve is None:
            url = await asyncio.to_thread(data_url, path)
        else:
            url = stack.enter_context(serve(path))
            await until_served(url, size)
        answer = await reasoner.ask(QUESTION, url, max_tokens=MAX_TOKENS, on_wait=on_wait)
    description = " ".join(answer.text.split())
    if not description:
        raise _failed("the answer is empty")
    tokens = await _video_tokens(reasoner, answer)
    if tokens < 1:
        raise _failed("the usage counts no prompt tokens of the video: the model did not see it")
    say(f"{answer.usage.get('prompt_tokens')} prompt tokens, {tokens} of them of the video")
    return {
        "description": description,
        "video_tokens": tokens,
        "usage": answer.usage,
        "made_by": made_by,
        **answer.facts,
    }


async def _video_tokens(reasoner: Reasoner, answer: Answer) -> int:
    """As the usage says; where it does not tell kinds apart, what the same question costs less without the video."""
    if answer.video_tokens:
        return answer.video_tokens
    alone = await reasoner.ask(QUESTION, max_tokens=1)
    return int(answer.usage.get("prompt_tokens") or 0) - int(alone.usage.get("prompt_tokens") or 0)


def _failed(why: str) -> ContractViolation:
    return ContractViolation(why, code="smoke_failed", remedy="see the service's log")
