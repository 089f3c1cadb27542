"""Wait until a URL of our own really leads to what we serve: a cluster's Service needs a moment to know its pod."""

from __future__ import annotations

import asyncio

import httpx

from cosmos3_serve.errors import ServiceFailure
from cosmos3_serve.proxies import direct

ATTEMPTS = 30
PAUSE_S = 2.0
ASK_S = 10.0


async def until_served(url: str, size: int, *, attempts: int = ATTEMPTS, pause_s: float = PAUSE_S) -> None:
    """Ask for the head of `url` until it answers with `size` bytes.

    Raises:
        ServiceFailure: code `video_not_served`: after `attempts` it still does not; a server could not fetch it either.
    """
    said = ""
    async with httpx.AsyncClient(timeout=ASK_S, follow_redirects=False, mounts=direct(url)) as http:
        for left in reversed(range(attempts)):
            try:
                answer = await http.head(url)
                if answer.status_code == 200 and answer.headers.get("content-length") == str(size):
                    return
                said = f"status {answer.status_code}"
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                said = type(error).__name__
            if left:
                await asyncio.sleep(pause_s)
    raise ServiceFailure(
        f"the video's public address does not lead to it ({said})",
        code="video_not_served",
        remedy="check --video-public-url, and the Service or the port behind it",
    )
