"""Find the media of a chat body, and parse the rest as JSON, without copying what is large.

A video's base64 is most of a body. `bytes.find` cuts each big data URL out and puts a word of ours in its place; JSON
sees only the light body. The word is random per request, so no text of a client can be it.

Why this equals plain parsing. A cut starts behind `"` and ends before the next unescaped `"`. If that first quote opens
a string, the cut is the whole string. If it is an escaped quote inside a string, or if it closes one, the word ends up
somewhere else than at a part's URL; then the body is parsed plainly. What stands in a cut is checked when it is used: a
data URL that decodes as base64 holds no quote, backslash or control character; anything else is parsed as JSON.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cosmos3_serve.contract.jsontext import JsonProblem, check_json, decode_json, plainly_clean
from cosmos3_serve.errors import Cosmos3Error, FieldError, InvalidRequest, LimitExceeded, ValidationFailed
from cosmos3_serve.reasoner.media.content import Found, find_parts
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.parts import DataSource, MediaPart
from cosmos3_serve.reasoner.media.response_input import find_input_parts

BIG = 4096  # shorter data URLs are not worth a cut
MAX_CUTS = 1024
MAX_DEPTH = 64
_MARK = b'"data:'


@dataclass(frozen=True, slots=True)
class Located:
    """
    Args:
        body: the parsed body. At each part the media is left out: `{"type": "video_url", "video_url": None, ...}`;
            whoever sends it on puts in what the replica needs.
        parts: in the order of the conversation.
    """

    body: dict[str, Any]
    parts: list[MediaPart] = field(default_factory=list)


def locate(raw: bytes | bytearray | memoryview, limits: MediaLimits, turns: str = "messages") -> Located:
    """Parse a request's body and find its media. Blocking; about 0.1 ms for a body with one video of 1 MiB.

    Args:
        turns: the field that holds the conversation: `messages` (chat), `input` (responses) or `prompt` (text only).

    Raises:
        LimitExceeded: the body, its text, its number of values or of media parts.
        InvalidRequest: not JSON (code `invalid_json`), not an object, or a part that cannot be read (code
            `media_part_invalid`, `media_url_invalid`); the error names the part.
        UnsupportedMediaType: a part of a kind that this service does not take.
    """
    view = memoryview(raw).toreadonly()
    if len(view) > limits.max_body_bytes:
        raise LimitExceeded(
            f"the request body is larger than {limits.max_body_bytes} bytes",
            code="body_too_large",
            remedy="upload the video once (POST /v1/files) and send file-id:<id>",
        )
    data = raw if isinstance(raw, bytes | bytearray) else bytes(raw)
    cuts = _cuts(data)
    if cuts:
        # A refusal here may name the second thing that is wrong; plain parsing names the first.
        with suppress(Cosmos3Error):
            found = _with_cuts(data, view, cuts, limits, turns)
            if found is not None:
                return found
    body = _parse(bytes(data), limits)
    parts = _find(body, {}, limits, turns)
    _check_light(len(data) - sum(len(p.source.text) for p in parts if isinstance(p.source, DataSource)), limits)
    return Located(body, parts)


def _find(body: dict[str, Any], cut: Mapping[str, Found], limits: MediaLimits, turns: str) -> list[MediaPart]:
    if turns == "messages":
        return find_parts(body, cut, limits)
    return find_input_parts(body, cut, limits) if turns == "input" else []


def _cuts(data: bytes | bytearray) -> list[tuple[int, int]]:
    """Spans (start, end) of what looks like big data URLs: between the quotes, quotes left out."""
    cuts: list[tuple[int, int]] = []
    at = data.find(_MARK)
    while at >= 0 and len(cuts) < MAX_CUTS:
        start = at + 1
        end = _closing_quote(data, start)
        if end < 0:
            break
        if end - start >= BIG:
            cuts.append((start, end))
            at = data.find(_MARK, end + 1)
        else:
            at = data.find(_MARK, start)
    return cuts


def _closing_quote(data: bytes | bytearray, start: int) -> int:
    end = data.find(b'"', start)
    while end > start:
        back = end
        while back > start and data[back - 1] == 0x5C:
            back -= 1
        if (end - back) % 2 == 0:
            return end
        end = data.find(b'"', end + 1)
    return end


def _with_cuts(
    data: bytes | bytearray, view: memoryview, cuts: list[tuple[int, int]], limits: MediaLimits, turns: str
) -> Located | None:
    """None: a word of ours is not where a part's URL is, so plain parsing must decide."""
    nonce = secrets.token_hex(16)
    pieces: list[bytes | memoryview] = []
    words: dict[str, Found] = {}
    before = 0
    for number, (start, end) in enumerate(cuts):
        word = f"{nonce}-{number}"
        pieces += (view[before:start], word.encode())
        words[word] = Found(start, end, view[start:end])
        before = end
    pieces.append(view[before:])
    light = b"".join(pieces)
    _check_light(len(light), limits)
    body = _parse(light, limits)
    for found in words.values():
        if data.find(b"\\", found.start, found.end) >= 0:
            found.text, found.plain = _unescaped(found.text), False
    parts = _find(body, words, limits, turns)
    exact = all(found.used for found in words.values()) and all(
        part.source.base64 for part in parts if isinstance(part.source, DataSource)
    )
    return Located(body, parts) if exact else None


def _unescaped(text: memoryview) -> memoryview:
    """A cut with backslashes (some encoders write `\\/`): read as the JSON string that it is."""
    try:
        value = json.loads(b'"' + bytes(text) + b'"')
    except ValueError:
        raise InvalidRequest(
            "body is not JSON: a data URL holds a broken escape or a control character", code="invalid_json"
        ) from None
    return memoryview(value.encode("utf-8", "surrogatepass"))


def _parse(data: bytes, limits: MediaLimits) -> dict[str, Any]:
    # Every value but the first follows a comma or a bracket; counting them costs less than building them.
    if sum(map(data.count, (b",", b"[", b"{"))) > limits.max_json_values:
        raise LimitExceeded(f"the request holds more than {limits.max_json_values} values", code="body_too_large")
    try:
        body = decode_json(data)
        if not plainly_clean(data, max_depth=MAX_DEPTH):
            check_json(body, max_depth=MAX_DEPTH, max_nodes=2 * limits.max_json_values)
    except ValidationFailed as error:
        raise InvalidRequest(error.detail, code=error.stable_code, remedy=error.remedy, errors=error.errors) from None
    except JsonProblem as problem:
        raise InvalidRequest(f"the body {problem.message}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise InvalidRequest(
            "the body is not a JSON object",
            code="invalid_json",
            errors=(FieldError("", "send an object with model and messages"),),
        )
    return body


def _check_light(size: int, limits: MediaLimits) -> None:
    if size > limits.max_light_bytes:
        raise LimitExceeded(
            f"the request holds more than {limits.max_light_bytes} bytes besides its media",
            code="body_too_large",
            remedy="put videos and images at the url of a video_url or image_url part",
        )
