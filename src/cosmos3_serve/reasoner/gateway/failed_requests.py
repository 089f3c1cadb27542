"""Requests over which replicas failed with a 5xx, and what of a failure may be logged.

One failure says nothing about its cause: the replica is examined by a canary. A request over which a replica fails that
nothing was held against, after an earlier failure, is the cause itself; to send it again would only fail again.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from cosmos3_serve.errors import ValidationFailed

MAX_REQUESTS = 4096
MAX_REASON = 300
HIDDEN = "…"
_WORD = re.compile(r"\w+")
_QUOTED = re.compile(r"\"[^\"]*\"?|`[^`]*`?|(?<!\w)'.*'|[\[{].*[\]}]", re.DOTALL)


class FailedRequests:
    """The latest, by tenant and digest of the whole body: what one tenant learns says nothing of another's requests."""

    def __init__(self, max_items: int = MAX_REQUESTS) -> None:
        self._max = max_items
        self._failed: OrderedDict[tuple[str, str], None] = OrderedDict()

    def on_failed(self, tenant: str, digest: str, *, well: bool) -> bool:
        """A replica failed over it. `well`: nothing was held against that replica until then.

        Returns:
            Whether the request is the cause.
        """
        key = tenant, digest
        again = key in self._failed
        self._failed[key] = None
        self._failed.move_to_end(key)
        while len(self._failed) > self._max:
            self._failed.popitem(last=False)
        return again and well

    def on_completed(self, tenant: str, digest: str) -> None:
        """A replica answered it: the earlier failure was that replica's."""
        self._failed.pop((tenant, digest), None)


def request_fails() -> ValidationFailed:
    return ValidationFailed(
        "replicas that answer other requests failed over this one twice",
        code="request_fails",
        remedy="ask it in another way, or with other parameters",
    )


def loggable(message: str, body: Mapping[str, Any]) -> str:
    """An engine's message without what the request said: engines quote prompts. Quotations, words of the request and
    everything that is not ASCII are hidden. Blocking, in proportion to the body."""
    said = json.dumps(list(_texts(body)), ensure_ascii=False).lower()

    def word(found: re.Match[str]) -> str:
        text = found[0]
        return text if text.isascii() and (len(text) < 3 or text.lower() not in said) else HIDDEN

    first = message.partition("\n")[0]  # what follows may be a traceback, with values in it
    short = _QUOTED.sub(HIDDEN, first)[:MAX_REASON]
    return re.sub(rf"{HIDDEN}(?:\W*{HIDDEN})+", HIDDEN, _WORD.sub(word, short))


def _texts(body: Mapping[str, Any]) -> list[str]:
    """What a request says, without the names of its fields, which a schema chooses itself, and without `model`."""
    found: list[str] = []
    waiting: list[Any] = [value for name, value in body.items() if name != "model"]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            found += [name for name in value if name not in _OURS]
            waiting += [v for name, v in value.items() if not (name in _OURS and isinstance(v, str) and v in _KINDS)]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            found.append(str(value))
    return found


# Names and values of the protocol, which say nothing of the client's.
_OURS = frozenset({"role", "content", "type", "text", "image_url", "video_url", "url", "uuid", "json_schema", "schema"})
_KINDS = frozenset({"user", "assistant", "system", "text", "image_url", "video_url", "json_schema", "json_object"})
