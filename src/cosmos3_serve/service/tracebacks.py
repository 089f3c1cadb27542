"""Tracebacks: where an exception was raised, as data for a log line, without texts that may quote a client's words."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

MAX_FRAMES = 40
MAX_CAUSES = 4
MAX_TEXT = 300


class Tracebacks:
    """A structlog processor: replaces `exc_info` by `exception` (its type), `frames` and, where there are, `causes`.

    An exception's own text is shown where the system wrote it (`OSError`, a device out of memory), else only on demand:
    a tokenizer or a parser quotes what it was given.

    Args:
        messages: show every exception's text.
    """

    def __init__(self, *, messages: bool) -> None:
        self._messages = messages

    def __call__(self, _logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        error = _error(event.pop("exc_info", None))
        if error is not None:
            first, *causes = _chain(error)
            event["exception"] = type(first).__name__
            event["frames"] = frames(first)
            if text := self._text(first):
                event["message"] = text
            if causes:
                event["causes"] = [f"{type(cause).__name__} at {(frames(cause) or ['?'])[-1]}" for cause in causes]
        return event

    def _text(self, error: BaseException) -> str:
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        if self._messages or "OutOfMemory" in type(error).__name__:
            return str(error)[:MAX_TEXT]
        return ""


def frames(error: BaseException) -> list[str]:
    """The last `MAX_FRAMES` calls, outermost first, as `module/file.py:line function`."""
    found = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
    return [f"{_short(frame.filename)}:{frame.lineno} {frame.name}" for frame in found]


def _short(path: str) -> str:
    """From the package on: where it is installed says nothing about the fault."""
    for root in sorted(filter(None, sys.path), key=len, reverse=True):
        if path.startswith(root + os.sep):
            return path[len(root) + 1 :]
    return "/".join(Path(path).parts[-2:])


def _error(given: Any) -> BaseException | None:
    if isinstance(given, BaseException):
        return given
    if isinstance(given, tuple):
        return given[1] if len(given) > 1 and isinstance(given[1], BaseException) else None
    return sys.exc_info()[1] if given else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) <= MAX_CAUSES:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
