"""From the body of an OpenAI request for a picture or a video to one sample. Pure; every finding is named at once."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from cosmos3_serve.contract.findings import did_you_mean, shorten
from cosmos3_serve.contract.limits import MAX_FPS, MAX_NUM_FRAMES
from cosmos3_serve.contract.media import SIZES
from cosmos3_serve.contract.openai_fields import (
    EXTRA_PARAMS,
    IMAGE_FIELDS,
    NEUTRAL,
    REFERENCES,
    REFUSED,
    SAMPLE_FIELDS,
    VIDEO_FIELDS,
    VIDEO_SAMPLE_FIELDS,
)
from cosmos3_serve.contract.sample import FIELD_NAMES
from cosmos3_serve.errors import FieldError, InvalidRequest

Kind = Literal["image", "video"]
RESPONSE_FORMATS: Final = ("b64_json", "url")
DEFAULT_FPS: Final = 24
NOT_OURS: Final = "is not supported here"
ACTION_TIER: Final = "704"  # sizes of robot recordings; no other mode takes them
_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")
_DATA = re.compile(r"data:[\w.+-]+/[\w.+-]+;base64,")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request.

    Attributes:
        sample: fields of the sample; its name and, where `reference` is given, its `vision_path` are still missing.
        model: as named by the client, None where it named none.
        reference: content of the conditioning picture or clip that came with the request.
        reference_field: the field that named it.
        response_format: of a picture.
    """

    sample: dict[str, Any]
    model: str | None = None
    reference: bytes | None = None
    reference_field: str = "input_reference"
    response_format: str = "b64_json"


def sizes() -> dict[str, tuple[str, str]]:
    """`WIDTHxHEIGHT` to (resolution, aspect ratio), of every size that a tier has; of two tiers the first."""
    found: dict[str, tuple[str, str]] = {}
    for tier, ratios in SIZES.items():
        if tier != ACTION_TIER:
            for ratio, (width, height) in ratios.items():
                found.setdefault(f"{width}x{height}", (tier, ratio))
    return found


def read_request(body: object, kind: Kind, *, file: bytes | None = None) -> Asked:
    """Translate a decoded body.

    Args:
        body: a JSON object; of a form, its text fields.
        file: the part `input_reference` of a form.

    Raises:
        InvalidRequest: code `field_invalid`; `errors` are all findings, and the detail is the first.
    """
    if not isinstance(body, dict):
        raise InvalidRequest("the body should be a JSON object", code="field_invalid")
    return _Reader(body, kind, file).read()


def request_field(sample_field: str, kind: Kind) -> str:
    """The field of the request that set a field of the sample, for findings about the sample."""
    place = re.sub(r"^samples\[0\]\.?", "", sample_field)
    if place in ("resolution", "aspect_ratio"):
        return "size"
    if place in ("vision_path", "model_mode") and kind == "video":
        return "input_reference"
    table = VIDEO_SAMPLE_FIELDS if kind == "video" else SAMPLE_FIELDS
    for name, target in table.items():
        if place == target:
            return name
    return f"extra_params.{place}" if place.partition("[")[0] in EXTRA_PARAMS else place


class _Reader:
    def __init__(self, body: Mapping[str, Any], kind: Kind, file: bytes | None) -> None:
        self._body = {name: value for name, value in body.items() if value is not None}
        self._kind = kind
        self._file = file
        self._fields = VIDEO_FIELDS if kind == "video" else IMAGE_FIELDS
        self._found: list[FieldError] = []
        self._reference: tuple[str, bytes] | None = None
        self._sample: dict[str, Any] = {}

    def read(self) -> Asked:
        self._nest()
        self._refuse_unknown()
        table = VIDEO_SAMPLE_FIELDS if self._kind == "video" else SAMPLE_FIELDS
        for name, target in table.items():
            if name in self._body:
                if target in self._sample:
                    self._wrong(name, f"says the same as another field ({target})", "give one of them")
                self._sample[target] = self._body[name]
        prompt = self._body.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            self._wrong("prompt", "should be a text", "describe what to generate")
        self._size()
        self._extra()
        if self._kind == "video":
            self._duration()
            self._references()
        else:
            self._sample["num_frames"] = 1
        model, answer = self._text("model"), self._text("response_format")
        if answer is not None and answer not in RESPONSE_FORMATS:
            self._wrong("response_format", f"should be one of {', '.join(RESPONSE_FORMATS)}", "leave it out")
        if self._found:
            first = self._found[0]
            raise InvalidRequest(
                f"{first.field}: {first.message}", remedy=first.remedy, errors=self._found, code="field_invalid"
            )
        name, content = self._reference or ("input_reference", None)
        return Asked(self._sample, model, content, name, answer or "b64_json")

    def _wrong(self, field: str, message: str, remedy: str = "") -> None:
        self._found.append(FieldError(field, message, remedy))

    def _text(self, name: str) -> str | None:
        value = self._body.get(name)
        if value is not None and not isinstance(value, str):
            self._wrong(name, "should be a string")
            return None
        return value

    def _nest(self) -> None:
        """Forms write an object's member as `input_reference[image_url]`, and objects as JSON text."""
        for name in [name for name in self._body if "[" in name]:
            outer, _, inner = name.partition("[")
            if outer in REFERENCES and inner.endswith("]") and outer not in self._body:
                self._body[outer] = {inner[:-1]: self._body.pop(name)}
        for name in (*REFERENCES, "extra_params"):
            value = self._body.get(name)
            if isinstance(value, str) and value.lstrip().startswith("{"):
                try:
                    self._body[name] = json.loads(value)
                except (ValueError, RecursionError):
                    self._wrong(name, "is not JSON")
                    del self._body[name]

    def _refuse_unknown(self) -> None:
        for name in list(self._body):
            if name in self._fields:
                continue
            value = self._body.pop(name)
            if any(value == neutral and type(value) is type(neutral) for neutral in NEUTRAL.get(name, ())):
                continue
            remedy = REFUSED.get(name) or did_you_mean(name, self._fields) or "leave it out"
            self._wrong(
                shorten(name, 100), "is not supported here with this value" if name in NEUTRAL else NOT_OURS, remedy
            )

    def _size(self) -> None:
        size = self._text("size")
        if size == "auto":
            size = None
        sides = [self._body.get(side) for side in ("width", "height")]
        if sides != [None, None]:
            if size is not None or None in sides:
                self._wrong("width", "needs height, and no size beside it", "give size, or width and height")
                return
            size = f"{sides[0]}x{sides[1]}"
        if size is None:
            return
        known = sizes()
        if not _SIZE.fullmatch(size) or size not in known:
            self._wrong("size", f"{shorten(size, 20)!r} is not a size of this model", f"use one of {', '.join(known)}")
            return
        self._sample["resolution"], self._sample["aspect_ratio"] = known[size]

    def _extra(self) -> None:
        extra = self._body.get("extra_params", {})
        if not isinstance(extra, dict):
            self._wrong("extra_params", "should be an object")
            return
        for name, value in extra.items():
            if name not in EXTRA_PARAMS:
                known = "use the request's own field for it" if name in FIELD_NAMES else ""
                remedy = known or did_you_mean(str(name), EXTRA_PARAMS) or "leave it out"
                self._wrong(f"extra_params.{shorten(str(name), 100)}", NOT_OURS, remedy)
            elif value is not None:
                self._sample[name] = value

    def _duration(self) -> None:
        frames = self._number("num_frames")
        if frames is not None and frames < 2:
            self._wrong("num_frames", "should be at least 2", "POST /v1/images/generations makes one picture")
        seconds = self._number("seconds")
        if seconds is None:
            return
        if "num_frames" in self._body:
            self._wrong("seconds", "cannot stand beside num_frames", "give one of them")
            return
        fps = self._number("fps") if "fps" in self._body else DEFAULT_FPS
        if fps is None or not 1 <= fps <= MAX_FPS:
            self._wrong("fps", f"should be 1 to {MAX_FPS}")
            return
        count = round(seconds * fps)
        if not 2 <= count <= MAX_NUM_FRAMES:
            self._wrong("seconds", f"times fps should be 2 to {MAX_NUM_FRAMES} frames")
            return
        self._sample["num_frames"] = count

    def _number(self, name: str) -> float | None:
        value = self._body.get(name)
        if value is None:
            return None
        try:
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise ValueError
            number = float(value)
            if not abs(number) < 1e9:  # also NaN
                raise ValueError
        except (ValueError, OverflowError):
            self._wrong(name, "should be a number")
            return None
        return number

    def _references(self) -> None:
        given = [name for name in REFERENCES if name in self._body]
        if self._file is not None:
            given.insert(0, "input_reference")
        if len(given) > 1:
            self._wrong(given[1], f"cannot stand beside {given[0]}", "give one reference")
            return
        if self._file is not None:
            self._reference = "input_reference", self._file
        elif given:
            self._refer(given[0], self._body[given[0]])

    def _refer(self, name: str, value: object) -> None:
        if isinstance(value, dict):
            keys = {"image_url", "video_url"} if name == "input_reference" else {REFERENCES[name]}
            for key in value:
                if key not in keys:
                    self._wrong(f"{name}.{shorten(str(key), 50)}", NOT_OURS, "send the file itself")
                    return
            value = next(iter(value.values()), None)
            if isinstance(value, dict):  # {"image_url": {"url": …}}, as in chat messages
                value = value.get("url")
        if not isinstance(value, str):
            self._wrong(name, "should be a file, a data: URL or an s3:// URI")
        elif value.startswith("s3://"):
            self._sample["vision_path"] = value
        elif match := _DATA.match(value):
            try:
                self._reference = name, base64.b64decode(value[match.end() :], validate=True)
            except (binascii.Error, ValueError):
                self._wrong(name, "holds no valid base64")
        else:
            self._wrong(name, "should be a file, a data: URL or an s3:// URI", "this service fetches no web addresses")
