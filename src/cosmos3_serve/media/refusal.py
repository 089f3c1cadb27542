"""Refused: one reason why media is not let in, small enough to travel from the probe's process and to be remembered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cosmos3_serve.errors import (
    FieldError,
    InputError,
    InvalidRequest,
    LimitExceeded,
    UnsupportedMediaType,
    ValidationFailed,
)

_CLASSES: Mapping[int, type[InputError]] = {
    400: InvalidRequest,
    413: LimitExceeded,
    415: UnsupportedMediaType,
    422: ValidationFailed,
}
# H.264 of 4:2:0 needs even sides.
COMMAND = (
    "ffmpeg -i INPUT -vf 'pad=ceil(iw/2)*2:ceil(ih/2)*2' -c:v libx264 -pix_fmt yuv420p -movflags +faststart OUTPUT.mp4"
)


class Refused(Exception):
    """
    Args:
        status: 400 (cannot be had or read), 413 (too large), 415 (not a type or codec we take), 422 (broken).
        code: stable.
        message: what was found, one sentence; never a path of this machine.
        remedy: what fixes it, with the command where there is one.
    """

    def __init__(self, status: int, code: str, message: str, remedy: str = "") -> None:
        super().__init__(status, code, message, remedy)
        self.status, self.code, self.message, self.remedy = status, code, message, remedy

    def __str__(self) -> str:
        return self.message

    def as_dict(self) -> dict[str, Any]:
        return {"status": self.status, "code": self.code, "message": self.message, "remedy": self.remedy}

    def as_error(self, param: str) -> InputError:
        """The typed error of the request: `errors[0].field` is the part, e.g. `messages[0].content[1]`."""
        found = (FieldError(param, self.message, self.remedy),) if param else ()
        kind = _CLASSES.get(self.status, ValidationFailed)
        return kind(self.message, remedy=self.remedy, code=self.code, errors=found)


def bad(code: str, message: str, remedy: str = "") -> Refused:
    return Refused(400, code, message, remedy)


def too_large(code: str, message: str, remedy: str = "") -> Refused:
    return Refused(413, code, message, remedy)


def unsupported(code: str, message: str, remedy: str = "") -> Refused:
    return Refused(415, code, message, remedy)


def broken(code: str, message: str, remedy: str = "") -> Refused:
    return Refused(422, code, message, remedy)
