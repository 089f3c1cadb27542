"""Questions by line, in the input format of OpenAI's batch API, and the body of a part."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cosmos3_serve.errors import FieldError, StorageAuthorizationError, ValidationFailed
from cosmos3_serve.queue.records import Kind
from cosmos3_serve.queue.sources import Start
from cosmos3_serve.queue.split import Group, Sourced
from cosmos3_serve.storage.uri import SCHEME, require_object

CHAT: Final = "/v1/chat/completions"
# What each takes, and what its answers hold.
PATHS: Final = {
    CHAT: ("messages", "choices"),
    "/v1/completions": ("prompt", "choices"),
    "/v1/responses": ("input", "output"),
}
FIELDS: Final = ("custom_id", "method", "url", "body")
MAX_ID: Final = 512
MEDIA: Final = ("video_url", "image_url")
_SCHEMES = ("https://", "http://", SCHEME, "data:", "file-id:")
EXAMPLE = '{"custom_id": …, "method": "POST", "url": "' + CHAT + '", "body": {"messages": […]}}'


@dataclass(frozen=True, slots=True)
class Questions:
    """See `queue.work.PartFormat`. A line without `body.model` asks `model`."""

    model: str
    kind = Kind.REASONER
    key = "custom_id"

    def item_bytes(self, item: dict[str, Any]) -> int:
        return len(json.dumps(item)) + len(self.model) + 32

    def body(self, group: Group, start: Start, request_id: str) -> bytes:
        """`{"request_id", "requests": […]}`; each request with its model.

        Raises:
            ValidationFailed: `errors` has file, line and field.
        """
        found = [error for item in group.samples for error in _errors(item, start)]
        if found:
            raise ValidationFailed(
                f"invalid questions: {found[0].field}: {found[0].message}", remedy=found[0].remedy, errors=found
            )
        requests = [{**item.sample, "body": {"model": self.model, **item.sample["body"]}} for item in group.samples]
        return json.dumps({"request_id": request_id, "requests": requests}, allow_nan=False).encode()


def _errors(item: Sourced, start: Start) -> Iterator[FieldError]:
    where, line = item.where, item.sample
    if not start.file.by_line:
        yield FieldError(where, "questions come by line", f"write {EXAMPLE}, one a line, into a .jsonl file")
        return
    for field in sorted(line.keys() - set(FIELDS)):
        yield FieldError(f"{where}: {field[:64]}", "is no field of a question", f"fields are {', '.join(FIELDS)}")
    name = line.get("custom_id")
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_ID or not name.isprintable():
        yield FieldError(
            f"{where}: custom_id", f"should be 1 to {MAX_ID} printable characters", "give each line an id of its own"
        )
    if line.get("method", "POST") != "POST":
        yield FieldError(f"{where}: method", "should be POST", 'write "method": "POST", or leave it out')
    if line.get("url", CHAT) not in PATHS:
        yield FieldError(f"{where}: url", f"should be one of {', '.join(PATHS)}", f'write "url": "{CHAT}"')
    body = line.get("body")
    if not isinstance(body, dict):
        yield FieldError(f"{where}: body", "should be the body of a request, a JSON object", f"write {EXAMPLE}")
        return
    asks, _ = PATHS.get(str(line.get("url", CHAT)), PATHS[CHAT])
    yield from (FieldError(f"{where}: body.{e.field}", e.message, e.remedy) for e in _body_errors(body, asks))


def _body_errors(body: Mapping[str, Any], asks: str) -> Iterator[FieldError]:
    if body.get("stream") not in (None, False):
        yield FieldError("stream", "answers of a batch are whole", "leave it out")
    if not isinstance(body.get("model", ""), str):
        yield FieldError("model", "should be the served name of a model", "leave it out, or name one")
    if asks != "messages":
        if not body.get(asks):
            yield FieldError(asks, "should say what is asked", f'write "{asks}": …')
        return
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        yield FieldError("messages", "should be a list of messages", 'write [{"role": "user", "content": …}]')
        return
    for path, kind, part in _media_parts(messages):
        value = part.get(kind)
        url = value.get("url") if isinstance(value, dict) else value
        if (problem := _url_problem(url)) is not None:
            yield FieldError(f"{path}.{kind}.url", *problem)


def _media_parts(messages: list[dict[str, Any]]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for number, message in enumerate(messages):
        content = message.get("content")
        for index, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict) and part.get("type") in MEDIA:
                yield f"messages[{number}].content[{index}]", str(part["type"]), part


def _url_problem(url: object) -> tuple[str, str] | None:
    remedy = f"name an object as {SCHEME}bucket/key, or https://, data: or file-id:"
    if not isinstance(url, str) or not url.strip().lower().startswith(_SCHEMES):
        return "is no URL that a service can read", remedy
    if url.strip()[: len(SCHEME)].lower() == SCHEME:
        try:
            require_object(url)
        except StorageAuthorizationError as error:
            return error.detail, error.remedy or remedy
    return None


def first_media(body: Mapping[str, Any]) -> str:
    """What a question is about: the URL of its first video or image, or nothing."""
    for _, kind, part in _media_parts([m for m in body.get("messages") or () if isinstance(m, dict)]):
        value = part.get(kind)
        url = value.get("url") if isinstance(value, dict) else value
        if isinstance(url, str):
            return url
    return ""
