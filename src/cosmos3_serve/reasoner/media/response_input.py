"""The pictures of a /v1/responses body, taken out of its `input`.

As strict as `content`: every item is one whose media this gate provides, or one that cannot hold any. The engine takes
no videos on this path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cosmos3_serve.media.refusal import Refused, bad, unsupported
from cosmos3_serve.reasoner.media.content import TEXT_TYPES, Found, Taken, check_counts, check_used, source_of
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.options import take_options
from cosmos3_serve.reasoner.media.parts import FileSource, MediaPart

# Items besides messages that hold no media; what a tool has said is looked into.
_CALLS = frozenset({"function_call", "custom_tool_call", "reasoning"})
_TOLD = frozenset({"function_call_output", "custom_tool_call_output"})
_WAYS = "give a data:, https:// or s3:// URL, or file-id:<id> of an upload"


def find_input_parts(body: dict[str, Any], cut: Mapping[str, Found], limits: MediaLimits) -> list[MediaPart]:
    """Take the pictures out of `body` (changed in place) and say what they were.

    Raises:
        InputError: typed and with the part as `errors[0].field`; see `locate`.
    """
    items = body.get("input")
    parts: list[MediaPart] = []
    try:
        options = take_options(body)
    except Refused as refused:
        raise refused.as_error("") from None
    for index, item in enumerate(items if isinstance(items, list) else ()):
        try:
            name, content = _content(item)
        except Refused as refused:
            raise refused.as_error(f"input[{index}]") from None
        here = []
        for position, part in enumerate(content):
            try:
                taken = _take(part, cut, told=name == "output")
            except Refused as refused:
                raise refused.as_error(f"input[{index}].{name}[{position}]") from None
            if taken is not None:
                kind, source, content[position] = taken
                here.append(MediaPart(kind, (index, position), source, options.by_kind[kind], "input"))
        check_counts(here, limits.videos_per_message, limits.images_per_message, "a message")
        parts += here
    check_counts(parts, limits.videos_per_request, limits.images_per_request, "a request")
    check_used(options, parts)
    return parts


def _content(item: Any) -> tuple[str, list[Any]]:
    """The field that holds an item's parts, and the parts; none where it has none."""
    if not isinstance(item, dict):
        return "", []  # the engine says what is wrong with it
    kind = item.get("type")
    name = "content"
    if not isinstance(kind, str | None):
        raise bad("media_part_invalid", "the item's type is not a string")
    if kind in _CALLS:
        return "", []
    if kind in _TOLD:
        name = "output"
    elif kind in (None, "message"):
        pass
    elif kind == "item_reference":
        raise bad("input_item_unsupported", "nothing is stored here that item_reference could name", "send the item")
    else:
        shown = str(kind)[:40]
        remedy = "send messages, function_call, function_call_output or reasoning"
        raise bad("input_item_unsupported", f"an item of type {shown!a} is not taken here", remedy)
    content = item.get(name)
    return name, content if isinstance(content, list) else []


def _take(part: Any, cut: Mapping[str, Found], told: bool) -> Taken | None:
    if not isinstance(part, dict):
        return None
    named = part.get("type")
    if not isinstance(named, str | None):
        raise bad("media_part_invalid", "the part's type is not a string")
    media = part.keys() & {"image_url", "video_url", "file_id", "file_url", "file_data"}
    if named in TEXT_TYPES:
        if media:
            raise bad("media_part_invalid", f"a {named} part holds {sorted(media)[0]}", "one part is one thing")
        return None
    if told:
        raise unsupported(
            "media_type_unsupported", "what a tool has said is text here", "send the picture in a message"
        )
    if named in ("input_video", "video_url") or "video_url" in media:
        raise unsupported("media_type_unsupported", "/v1/responses takes no videos", "ask on /v1/chat/completions")
    if named != "input_image":
        raise unsupported(
            "media_type_unsupported",
            f"a part of type {str(named)[:40]!a} is not taken here",
            "send input_text or input_image",
        )
    url, file_id = part.get("image_url"), part.get("file_id")
    if media - {"image_url", "file_id"}:
        raise bad("media_part_invalid", f"an input_image part holds {sorted(media)[0]}", "one part is one thing")
    if (url is None) == (file_id is None) or not isinstance(url or file_id, str) or not str(url or file_id).strip():
        raise bad("media_url_invalid", "an input_image part needs image_url or file_id", _WAYS)
    source = source_of(url, "image", cut) if url is not None else FileSource(str(file_id).strip())
    rest = {name: item for name, item in part.items() if name not in ("image_url", "file_id", "uuid")}
    return "image", source, {**rest, "image_url": None}
