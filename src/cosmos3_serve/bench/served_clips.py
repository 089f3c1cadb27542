"""Whether clips are still what their listing says: on disk, or where somebody else serves them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import httpx

from cosmos3_serve.bench.videos import Video, listed
from cosmos3_serve.errors import InputError, IntegrityError, Unreachable
from cosmos3_serve.proxies import direct

TIMEOUT_S = 60.0


def refuse_changed(directory: Path, videos: Sequence[Video]) -> None:
    """Read every clip. Blocking.

    Raises:
        IntegrityError: the first that has other bytes (code `video_changed`): figures would be of unknown videos.
        InputError: one is not there.
    """
    for video in videos:
        try:
            found = listed(directory / video.name)
        except OSError as error:
            raise InputError(
                f"{directory / video.name} cannot be read: {error.strerror}",
                remedy="cosmos3 bench videos makes again what is not as listed",
            ) from None
        if found != video:
            raise _changed(str(directory / video.name))


async def refuse_changed_at(base_url: str, videos: Sequence[Video]) -> None:
    """Fetch every clip from `base_url`, and no more than its listed bytes of any.

    Raises:
        IntegrityError: the first that has other bytes (code `video_changed`).
        InputError: one is refused there.
        Unreachable: nobody answers there.
    """
    async with httpx.AsyncClient(timeout=TIMEOUT_S, mounts=direct(base_url)) as http:
        for video in videos:
            url = f"{base_url}/{video.name}"
            digest, size = hashlib.sha256(), 0
            try:
                async with http.stream("GET", url) as answer:
                    if answer.status_code != 200:
                        raise InputError(f"{url} answers {answer.status_code}", remedy="check --video-base-url")
                    async for piece in answer.aiter_bytes():
                        size += len(piece)
                        digest.update(piece)
                        if size > video.bytes:
                            break
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise Unreachable(
                    f"{url} cannot be fetched: {type(error).__name__}",
                    remedy="check --video-base-url: the clips are read from here too",
                ) from None
            if (size, digest.hexdigest()) != (video.bytes, video.sha256):
                raise _changed(url)


def _changed(where: str) -> IntegrityError:
    return IntegrityError(
        f"{where} is not the clip that the listing names",
        code="video_changed",
        remedy="cosmos3 bench videos makes again what is not as listed",
    )
