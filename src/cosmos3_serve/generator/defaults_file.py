"""The operator's file of custom defaults (`--defaults-file`): read and checked before anything starts."""

from __future__ import annotations

from pathlib import Path

from cosmos3_serve.contract.defaults import Defaults, parse_custom_defaults
from cosmos3_serve.contract.jsontext import decode_json
from cosmos3_serve.errors import InputError, StartRefused, UsageError

MAX_BYTES = 1024 * 1024


def read_defaults(path: Path | None) -> Defaults:
    """The defaults in `path`; none without a path. Blocking.

    Raises:
        StartRefused: code `defaults_file`: it cannot be read.
        UsageError: code `invalid_defaults`: it is no JSON, or names what can have no default.
    """
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise StartRefused(
            f"the defaults file {path} cannot be read ({error.strerror})",
            code="defaults_file",
            remedy="name a file that every node can read: --defaults-file, COSMOS3_DEFAULTS_FILE",
        ) from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"the defaults file has more than {MAX_BYTES} bytes", code="invalid_defaults")
    try:
        return parse_custom_defaults(decode_json(data))
    except UsageError:
        raise
    except InputError as error:
        raise UsageError(
            f"invalid defaults file: {error.detail}", remedy="write one JSON object, UTF-8", code="invalid_defaults"
        ) from None
