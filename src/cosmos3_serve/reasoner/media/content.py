"""The media parts of a parsed chat body, taken out of it.

Strict on purpose: a replica loads media from any part that it recognises, whatever the part's `type` says, and fetches
URLs itself. So every part is either text without media keys, or an image or video whose bytes this gate provides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cosmos3_serve.media.refusal import Refused, bad, too_large, unsupported
from cosmos3_serve.media.sniff import Kind
from cosmos3_serve.reasoner.media.dataurl import parse_data_url
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.options import ProcessingOptions, take_options
from cosmos3_serve.reasoner.media.parts import DataSource, FileSource, MediaPart, Source, UrlSource

TEXT_TYPES = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "tool_reference"})
_KEYS: Mapping[str, Kind] = {"image_url": "image", "video_url": "video"}
# What the replica's engine would load besides: never let through.
_OTHER_MEDIA = frozenset(
    {"audio_url", "input_audio", "image_pil", "image_embeds", "audio_embeds", "video_embeds", "prompt_embeds", "file"}
)
Taken = tuple[Kind, Source, dict[str, Any]]  # kind, source, and the part without its media
FILE_ID = "file-id:"
_TYPES = "send text, image_url or video_url parts"
_WAYS = "give a data:, https:// or s3:// URL, or file-id:<id> of an upload"


@dataclass(slots=True)
class Found:
    """A big data URL that was cut out of the body, and whether a part claimed it."""

    start: int
    end: int
    text: memoryview
    plain: bool = True  # no backslash: the bytes stand for themselves
    used: bool = False


def find_parts(body: dict[str, Any], cut: Mapping[str, Found], limits: MediaLimits) -> list[MediaPart]:
    """Take the media out of `body` (changed in place) and say what it was.

    Args:
        cut: word in the body -> the data URL that stood there.

    Raises:
        InputError: typed and with the part as `errors[0].field`; see `locate`.
    """
    messages = body.get("messages")
    parts: list[MediaPart] = []
    if not isinstance(messages, list):
        return parts
    try:
        options = take_options(body)
    except Refused as refused:
        raise refused.as_error("") from None
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            continue
        here = []
        for position, part in enumerate(content):
            try:
                taken = _take(part, cut)
            except Refused as refused:
                raise refused.as_error(f"messages[{index}].content[{position}]") from None
            if taken is not None:
                kind, source, content[position] = taken
                here.append(MediaPart(kind, (index, position), source, options.by_kind[kind], frames=options.frames))
        check_counts(here, limits.videos_per_message, limits.images_per_message, "a message")
        parts += here
    check_counts(parts, limits.videos_per_request, limits.images_per_request, "a request")
    check_used(options, parts)
    return parts


def check_used(options: ProcessingOptions, parts: Sequence[MediaPart]) -> None:
    """
    Raises:
        InvalidRequest: code `media_option_invalid`: an option is for media that the request does not hold.
    """
    try:
        options.check_used({part.kind for part in parts})
    except Refused as refused:
        raise refused.as_error("") from None


def check_counts(parts: list[MediaPart], videos: int, images: int, scope: str) -> None:
    """
    Raises:
        LimitExceeded: code `too_many_media`, with the first part that is too many.
    """
    for kind, limit in (("video", videos), ("image", images)):
        of_kind = [part for part in parts if part.kind == kind]
        if len(of_kind) > limit:
            raise _too_many(kind, limit, len(of_kind), scope).as_error(of_kind[limit].param)


def _too_many(kind: str, limit: int, count: int, scope: str) -> Refused:
    return too_large("too_many_media", f"{scope} may hold {limit} {kind}(s), this one holds {count}", "send fewer")


def _take(part: Any, cut: Mapping[str, Found]) -> Taken | None:
    """None for text."""
    if not isinstance(part, dict):
        return None  # plain text, or what the replica will refuse
    named = part.get("type")
    if named is not None and not isinstance(named, str):
        raise bad("media_part_invalid", "the part's type is not a string")
    keys = [key for key in _KEYS if key in part]
    other = _OTHER_MEDIA & part.keys()
    if named is not None and (named in _OTHER_MEDIA or named.endswith("_embeds")):
        other = other | {named}
    if other:
        what = sorted(other)[0]
        raise unsupported("media_type_unsupported", f"{what} is not taken here", _TYPES)
    if named in TEXT_TYPES:
        if keys:
            raise bad("media_part_invalid", f"a {named} part holds {keys[0]}", "one part is one thing")
        part.pop("uuid", None)
        return None
    key = "image_url" if named == "input_image" else named if named in _KEYS else None
    if named is None and len(keys) == 1:
        key = keys[0]
    if key is None:
        raise unsupported(
            "media_type_unsupported",
            f"a part of type {str(named)[:40]!a} is not taken here",
            "send text, image_url or video_url",
        )
    if keys != [key]:
        raise bad("media_part_invalid", f"a {key} part holds {', '.join(keys) or f'no {key}'}", "one part is one thing")
    value = part[key]
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str) or not url.strip():
        raise bad("media_url_invalid", f"the {key} part has no url", _WAYS)
    kind = _KEYS[key]
    rest = {name: item for name, item in part.items() if name not in ("type", key, "uuid")}
    return kind, source_of(url, kind, cut), {"type": key, key: None, **rest}


def source_of(url: str, kind: Kind, cut: Mapping[str, Found]) -> Source:
    """Where the bytes of a part are to come from.

    Raises:
        Refused: 400 `media_url_invalid`, or as `parse_data_url`.
    """
    found = cut.get(url)
    if found is not None:
        found.used = True
        source = parse_data_url(found.text, kind)
        return DataSource(source.mime, source.text, source.base64, found.plain)
    url = url.strip()
    scheme = url.partition(":")[0].lower()
    if scheme == "data":
        return parse_data_url(memoryview(url.encode("utf-8")), kind)
    if url[: len(FILE_ID)].lower() == FILE_ID:
        return FileSource(url[len(FILE_ID) :].strip())
    if scheme in ("https", "http", "s3") and url[len(scheme) :].startswith("://"):
        return UrlSource(scheme, url)  # type: ignore[arg-type]
    raise bad("media_url_invalid", f"the URL scheme {scheme[:20]!a} is not taken", _WAYS)
