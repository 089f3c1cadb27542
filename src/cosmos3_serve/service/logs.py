"""Logs: one JSON object a line on stderr, with the request's id, and without tokens, prompts, buckets or tenants.

Lines of the standard library's `logging` join the same stream: our own modules' as they are, other packages' from
WARNING on and without their text, which may quote a prompt. At level `debug` other packages' texts are shown.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import sys
import time
import uuid
from collections.abc import Callable, MutableMapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cosmos3_serve.service.tracebacks import Tracebacks

log = structlog.get_logger(__name__)

OURS = "cosmos3_serve"
TARGET_ENV = "COSMOS3_LOG_TARGET"
REQUEST_ID_HEADER = b"x-request-id"
_SAFE_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")

SECRET_KEYS = frozenset(
    {"token", "tokens_value", "authorization", "prompt", "negative_prompt", "prompt_path", "samples", "body", "tenant",
     "bucket", "uri", "secret", "password", "access_key", "hf_token"}
)  # fmt: skip
HIDDEN = "[hidden]"
_BEARER = re.compile(r"(?i)\b(bearer)\s+\S+")
_S3 = re.compile(r"s3://[^\s'\",)\]}]+")
# Made once: a line is written for every request.
_encode = json.JSONEncoder(sort_keys=True, default=repr).encode


def configure(level: str = "info") -> None:
    """Set up structlog and the standard library's logging for this process: the service, each replica, the command."""
    traced = Tracebacks(messages=level == "debug")
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            stamp,
            traced,
            redact,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=_target()),
        cache_logger_on_first_use=False,
    )
    _bridge(level, traced)


class _Bridge(logging.Handler):
    """Writes the standard library's records where structlog writes."""

    def __init__(self, target: TextIO | None) -> None:
        super().__init__()
        self._file = target

    def emit(self, record: logging.LogRecord) -> None:
        try:
            (self._file or sys.stderr).write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)


def _bridge(level: str, traced: Tracebacks) -> None:
    target = _target()
    handler = _Bridge(None if target is sys.stderr else target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_log_level, _named(level), stamp, traced, redact],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _Bridge)]:
        root.removeHandler(old)
    root.addHandler(handler)
    logging.getLogger(OURS).setLevel(getattr(logging, level.upper()))


def _named(level: str) -> Callable[[Any, str, MutableMapping[str, Any]], MutableMapping[str, Any]]:
    def named(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        record: logging.LogRecord = event["_record"]
        event["logger"] = record.name
        if record.name.partition(".")[0] != OURS:
            event["at"] = f"{record.module}:{record.lineno}"
            if level != "debug":
                event["event"] = "library_log"
        return event

    return named


def stderr_path() -> str:
    """Where another process of this machine can write to our stderr; empty where it cannot (no /proc, a socket).

    When stderr is a file, it is put into append mode, or each process would write over the others' lines.
    """
    path = Path(f"/proc/{os.getpid()}/fd/2")
    try:
        if path.is_socket() or not path.exists():
            return ""
        fcntl.fcntl(2, fcntl.F_SETFL, fcntl.fcntl(2, fcntl.F_GETFL) | os.O_APPEND)
    except OSError:
        return ""
    return str(path)


def _target() -> TextIO:
    """Ray sends a worker's stderr to a file of its own; a replica writes to the stderr of the service instead."""
    path = os.environ.get(TARGET_ENV)
    if path and not path.startswith(f"/proc/{os.getpid()}/"):
        with contextlib.suppress(OSError):
            return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY), "w", buffering=1)
    return sys.stderr


def stamp(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The time in UTC, ISO 8601, microseconds."""
    seconds, fraction = divmod(time.time(), 1)
    event["timestamp"] = f"{_second(int(seconds))}.{int(fraction * 1e6):06}Z"
    return event


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def render(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    """One JSON object; what JSON cannot hold stands as its `repr`."""
    return _encode(event)


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Hide by name what must not be logged, and by shape what slipped into a text."""
    for key, value in event.items():
        if key.lower() in SECRET_KEYS:
            event[key] = HIDDEN
        elif isinstance(value, str) and ("s3://" in value or "bearer" in value.lower()):
            event[key] = _S3.sub("s3://" + HIDDEN, _BEARER.sub(r"\1 " + HIDDEN, value))
    return event


class RequestLog:
    """Gives each request an id, returns it as `X-Request-ID`, and logs one line per answer.

    The id only marks log lines. Nothing is looked up or cached by it, so two clients that send the same one get each
    their own answer.

    Args:
        shown: the part of a path that may be logged; ids of clients' things may not.
    """

    def __init__(
        self,
        app: ASGIApp,
        on_answer: Callable[[int], None] = lambda _: None,
        shown: Callable[[str], str] = lambda path: path,
    ) -> None:
        self.app = app
        self.on_answer = on_answer
        self.shown = shown
        self._bound: tuple[Any, Any] = (None, None)  # the logger, and what it was made by

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = next((v for k, v in scope["headers"] if k == REQUEST_ID_HEADER), b"")
        request_id = given if _SAFE_ID.fullmatch(given) else uuid.uuid4().hex.encode()
        status = 0

        async def marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self.on_answer(status)
                message = {**message, "headers": [*message.get("headers", []), (REQUEST_ID_HEADER, request_id)]}
            await send(message)

        started = time.perf_counter()
        marks = structlog.contextvars.bind_contextvars(http_request=request_id.decode())
        try:
            await self.app(scope, receive, marked)
        finally:
            with contextlib.suppress(Exception):
                quiet = scope["path"] in ("/health", "/ready", "/metrics") and status < 400
                bound = self._log()
                (bound.debug if quiet else bound.info)(
                    "http",
                    method=scope["method"],
                    # Only what our own routes are made of: a stranger may have typed a secret into the path.
                    path=self.shown(scope["path"])[:200] if status not in (401, 404) else "",
                    status=status,
                    seconds=round(time.perf_counter() - started, 4),
                )
            structlog.contextvars.reset_contextvars(**marks)

    def _log(self) -> Any:
        """Made once for each configuration, not for each line."""
        factory = structlog.get_config()["logger_factory"]
        if self._bound[1] is not factory:
            self._bound = (log.bind(), factory)
        return self._bound[0]
