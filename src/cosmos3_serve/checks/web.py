"""One bounded question over HTTP: no redirects, no cookies, a small body, a deadline, and never an exception."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

MAX_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Reply:
    """`status` is None where no HTTP answer came; `trouble` then says what happened. `body` is a JSON object or empty.

    The body is not shown by `repr`: it may hold a token.
    """

    status: int | None
    trouble: str = ""
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)


async def ask(url: str, *, timeout_s: float, auth: tuple[str, str] | None = None, bearer: str = "") -> Reply:
    """GET `url` once, within `timeout_s` seconds altogether. A credential goes to this address only."""
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "cosmos3-serve"}
    if bearer:
        headers["Authorization"] = f"Bearer {bearer}"
    try:
        async with (
            asyncio.timeout(timeout_s),
            httpx.AsyncClient(timeout=timeout_s, follow_redirects=False) as client,
            client.stream("GET", url, headers=headers, auth=auth) as response,
        ):
            return Reply(response.status_code, body=await _object(response))
    except TimeoutError:
        return Reply(None, f"no answer within {timeout_s:g} s")
    except (UnicodeEncodeError, httpx.LocalProtocolError):
        return Reply(None, "the credential holds characters that cannot be sent")
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        return Reply(None, f"no answer ({type(error).__name__})")


async def _object(response: httpx.Response) -> Mapping[str, Any]:
    data = bytearray()
    async for chunk in response.aiter_raw():
        data += chunk
        if len(data) > MAX_BYTES:
            return {}
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
