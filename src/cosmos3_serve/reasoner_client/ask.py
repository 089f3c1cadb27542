"""Ask a reasoner: plain OpenAI HTTP, so that it works against ours and against any other server of that kind."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from cosmos3_serve.client import load, problem
from cosmos3_serve.client.events import split_lines
from cosmos3_serve.errors import (
    ContractViolation,
    Cosmos3Error,
    FieldError,
    InputError,
    LimitExceeded,
    NotFound,
    NotReady,
    QueueFull,
    ServiceFailure,
    Unauthorized,
    Unreachable,
    UsageError,
)
from cosmos3_serve.proxies import direct
from cosmos3_serve.retry import Attempts, RetryPolicy, retry_after
from cosmos3_serve.settings import REASONER_TOKEN_ENV

ENDPOINT_ENV = "COSMOS3_REASONER_ENDPOINT"
DEFAULT_ENDPOINT = "http://127.0.0.1:8000"
DEFAULT_MODEL = "nvidia/cosmos3-nano-reasoner"
SESSION_HEADER = "X-Session-ID"
CONNECT_S = 10.0
# A full service is asked again; a Retry-After beyond these two minutes is not waited for.
BUSY = RetryPolicy(attempts=5, base_s=0.5, cap_s=10.0, deadline_s=120.0)
MAX_LINE = 4 * 1024 * 1024
MAX_ANSWER = 16 * 1024 * 1024
JSON = "application/json"
TOLD_HEADERS = ("x-cosmos3-replica", "x-cosmos3-session", "x-cosmos3-media", "x-request-id")
_SCHEMES = ("http://", "https://", "s3://", "data:", "file-id:")
_KINDS: Mapping[int, type[Cosmos3Error]] = {
    401: Unauthorized, 404: NotFound, 413: LimitExceeded, 429: QueueFull, 503: NotReady,
}  # fmt: skip


@dataclass(slots=True)
class Answer:
    """
    Args:
        facts: what the server's headers say: replica, session, media, request id.
        usage: empty where the server sends none.
    """

    question: str
    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    explanation: dict[str, Any] | None = None

    @property
    def video_tokens(self) -> int:
        """Prompt tokens that the server says came from videos."""
        details = self.usage.get("prompt_tokens_details") or {}
        return int((details.get("multimodal_tokens") or {}).get("video") or 0)

    def as_dict(self) -> dict[str, Any]:
        shown = {"question": self.question, "answer": self.text, "finish_reason": self.finish_reason,
                 "usage": self.usage, **self.facts}  # fmt: skip
        return {**shown, "explain": self.explanation} if self.explanation is not None else shown


@dataclass(frozen=True, slots=True)
class Posted:
    """A whole answer: the body as the service sent it, and its `x-request-id`."""

    request_id: str
    body: dict[str, Any]


class Reasoner:
    """A reasoner service; use it as an async context manager.

    Every call raises:
        Unreachable: no answer.
        Cosmos3Error: the service's refusal, typed, with its code.
        ContractViolation: an answer that is no chat completion.
    """

    def __init__(
        self, endpoint: str = "", *, token_env: str = REASONER_TOKEN_ENV, model: str = DEFAULT_MODEL,
        timeout_s: float = 600.0, environ: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        environ = os.environ if environ is None else environ
        # OpenAI's clients are given an address that ends in /v1: ours takes that one too.
        self.endpoint = load.endpoint_of(endpoint, environ, env=ENDPOINT_ENV, default=DEFAULT_ENDPOINT).removesuffix(
            "/v1"
        )
        self._token = load.token_of(token_env, environ)
        self._token_env = token_env
        self.model = model
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        self._http = httpx.AsyncClient(
            base_url=self.endpoint,
            headers={"Authorization": f"Bearer {self._token}"},
            follow_redirects=False,
            mounts=direct(self.endpoint),
            timeout=httpx.Timeout(self._timeout_s, connect=CONNECT_S),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def get(self, path: str, **query: str) -> dict[str, Any]:
        """One JSON answer."""
        try:
            answer = await self._http.get(path, params=query)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        if answer.status_code != 200:
            raise self._failure(answer.status_code, answer.content, answer.headers)
        return self._object(answer.content)

    async def video_url(self, video: str) -> str:
        """What a question refers to the video by: URLs as they are, a file after one upload."""
        if video.lower().startswith(_SCHEMES):
            return video
        path = Path(video)
        if not path.is_file():
            raise UsageError(
                f"{video!r} is neither a file nor a URL", remedy="give a path, https://, s3:// or file-id:"
            )
        return f"file-id:{await self.upload(path)}"

    async def upload(self, path: Path, purpose: str = "vision") -> str:
        """The id of the file, kept by the service until it is deleted or too old."""
        try:
            with path.open("rb") as file:
                answer = await self._http.post(
                    "/v1/files",
                    data={"purpose": purpose},
                    files={"file": (path.name, file, "application/octet-stream")},
                )
        except OSError as error:
            raise UsageError(f"{path.name} cannot be read: {error.strerror}") from None
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        if answer.status_code != 200:
            raise self._failure(answer.status_code, answer.content, answer.headers)
        found = self._object(answer.content).get("id")
        if not isinstance(found, str):
            raise self._foreign("the service's answer to an upload names no id")
        return found

    async def ask(
        self,
        question: str,
        video_url: str | None = None,
        *,
        session: str | None = None,
        max_tokens: int | None = None,
        on_text: Callable[[str], None] = lambda piece: None,
        on_wait: Callable[[Cosmos3Error, float], None] = lambda why, seconds: None,
        **fields: Any,
    ) -> Answer:
        """One question, streamed; waits and asks again where the service says that it is full.

        Args:
            on_text: called with each piece of the answer as it comes.
            on_wait: called before each wait, with the refusal and the seconds.
            fields: further ones of the request's body.

        Raises:
            UsageError: a blank question, or a session that fits no header.
        """
        if not question.strip():
            raise UsageError("the question is blank", remedy="ask something")
        content: Any = question
        if video_url is not None:
            content = [{"type": "video_url", "video_url": {"url": video_url}}, {"type": "text", "text": question}]
        body = {"model": self.model, "messages": [{"role": "user", "content": content}], "stream": True,
                "stream_options": {"include_usage": True}, **fields}  # fmt: skip
        if max_tokens is not None:
            body["max_completion_tokens"] = max_tokens
        raw = json.dumps(body).encode()
        headers = {b"content-type": JSON.encode()}
        if session:
            headers[SESSION_HEADER.encode()] = session_value(session)
        attempts = Attempts(BUSY)
        while True:
            answer = Answer(question)
            try:
                await self._streamed(raw, headers, answer, on_text)
                return answer
            except (QueueFull, NotReady) as busy:
                wait = None if answer.text or busy.retry_after_s is None else attempts.wait_s(busy.retry_after_s)
                if wait is None:
                    raise
                on_wait(busy, wait)
                await asyncio.sleep(wait)

    async def post(self, path: str, raw: bytes) -> Posted:
        """One request with a whole answer of at most 16 MiB, tried once."""
        data = bytearray()
        try:
            async with self._http.stream("POST", path, content=raw, headers={"content-type": JSON}) as response:
                async for chunk in response.aiter_bytes():
                    data += chunk
                    if len(data) > MAX_ANSWER:
                        raise self._foreign(f"the answer is longer than {MAX_ANSWER} bytes")
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        if response.status_code != 200:
            raise self._failure(response.status_code, bytes(data), response.headers)
        return Posted(response.headers.get("x-request-id", ""), self._object(bytes(data)))

    async def _streamed(
        self, raw: bytes, headers: Mapping[bytes, bytes], answer: Answer, on_text: Callable[[str], None]
    ) -> None:
        try:
            async with self._http.stream("POST", "/v1/chat/completions", content=raw, headers=headers) as response:
                answer.facts = {name: response.headers[name] for name in TOLD_HEADERS if name in response.headers}
                if response.status_code != 200:
                    raise self._failure(response.status_code, await response.aread(), response.headers)
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    raise self._foreign("the answer is no stream of events")
                async for event in _events(response):
                    _take(event, answer, on_text)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def _failure(self, status: int, body: bytes, headers: Mapping[str, str]) -> Cosmos3Error:
        error = failure(status, body, headers)
        if isinstance(error, Unauthorized):
            error.remedy = f"check the token in {self._token_env}, or name another variable with --token-env"
        elif status == 404 and "error" not in problem.parse(body):
            return self._foreign("there is no such path (404)")
        return error

    def _object(self, body: bytes) -> dict[str, Any]:
        found = problem.parse(body)
        if not found:
            raise self._foreign("the answer is not a JSON object")
        return found

    def _foreign(self, what: str) -> ContractViolation:
        return ContractViolation(f"{self.endpoint}: {what}", remedy="check --endpoint: is a reasoner there?")

    def _unreachable(self, error: httpx.TransportError) -> Unreachable:
        why = problem.printable(str(error)) or type(error).__name__
        return Unreachable(
            f"cannot reach the reasoner at {self.endpoint}: {why}", remedy="check --endpoint, and that the service runs"
        )


def session_value(session: str) -> bytes:
    """A session's name as a header's value.

    Raises:
        UsageError: a control character in it.
    """
    if not session.isprintable():
        raise UsageError("the session's name holds a control character", remedy="give --session printable characters")
    return session.encode("utf-8", "replace")


def failure(status: int, body: bytes, headers: Mapping[str, str]) -> Cosmos3Error:
    """The typed failure of an OpenAI-shaped refusal."""
    found = problem.parse(body).get("error")
    found = found if isinstance(found, dict) else {}
    text = found.get("message")
    text = text if isinstance(text, str) else body[:1000].decode("utf-8", "replace")
    param, code, remedy = found.get("param"), found.get("code"), found.get("remedy")
    kind = _KINDS.get(status) or (InputError if status < 500 else ServiceFailure)
    return kind(
        f"the reasoner refused ({status}): {problem.printable(text)}",
        code=code if isinstance(code, str) and code else None,
        remedy=problem.printable(remedy) if isinstance(remedy, str) else None,
        errors=[FieldError(problem.printable(param), problem.printable(text))] if isinstance(param, str) else (),
        retry_after_s=retry_after(headers),
    )


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The events before `[DONE]`.

    Raises:
        ContractViolation: no events, a broken or too long one, or an end without `[DONE]`.
    """
    async for line in split_lines(response.aiter_bytes(), MAX_LINE):
        if not line.startswith(b"data:"):
            continue
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        yield _event(data)
    raise ContractViolation("the answer ended before its last event", code="answer_incomplete")


def _take(event: dict[str, Any], answer: Answer, on_text: Callable[[str], None]) -> None:
    broken = event.get("error")
    if isinstance(broken, dict):
        raise ServiceFailure(
            f"the answer broke off: {problem.printable(str(broken.get('message', '')))}",
            code=str(broken.get("code") or "answer_incomplete"),
            remedy="ask again",
        )
    answer.usage = event.get("usage") or answer.usage
    answer.explanation = event.get("cosmos3") or answer.explanation
    choices = event.get("choices")
    if not isinstance(choices, list):
        raise ContractViolation("an event of the answer has no choices")
    for choice in choices:
        piece = (choice.get("delta") or {}).get("content")
        if isinstance(piece, str) and piece:
            answer.text += piece
            on_text(piece)
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason


def _event(body: bytes) -> dict[str, Any]:
    found = problem.parse(body)
    if not found:
        raise ContractViolation("an event of the answer is not a JSON object")
    return found


def data_url(path: Path) -> str:
    """A file as a data URL, for servers without a files API. Blocking."""
    return "data:video/mp4;base64," + base64.b64encode(path.read_bytes()).decode()


def for_terminal(text: str) -> str:
    """What a model said, for a terminal: line breaks and tabs stay, whatever else would steer a terminal does not."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
