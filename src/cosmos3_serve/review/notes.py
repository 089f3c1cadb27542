"""A reviewer's notes: what a person saw in a sample, shown beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from cosmos3_serve.errors import UsageError

MAX_BYTES = 4 * 1024 * 1024
MAX_NOTE = 2000


def read_notes(pairs: Iterable[str], file: Path | None) -> dict[str, str]:
    """Notes by sample name, or by `<request id>/<name>` where several publications share names.

    Args:
        pairs: `NAME=TEXT`; these win over the file.
        file: a JSON object of the same.

    Raises:
        UsageError: code `invalid_notes`.
    """
    notes = _from_file(file) if file else {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (equals and name.strip() and text.strip()):
            raise _invalid(f"--note {pair[:80]!r} is not NAME=TEXT")
        notes[name.strip()] = text.strip()
    if long := [name for name, text in notes.items() if len(text) > MAX_NOTE]:
        raise _invalid(f"the note of {long[0][:80]!r} is longer than {MAX_NOTE} characters")
    return notes


def _from_file(file: Path) -> dict[str, str]:
    try:
        if file.stat().st_size > MAX_BYTES:
            raise _invalid(f"the notes file is larger than {MAX_BYTES} bytes")
        found = json.loads(file.read_bytes())
    except OSError as error:
        raise _invalid(f"the notes file cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise _invalid("the notes file is not JSON") from None
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise _invalid("the notes file is not one JSON object of texts")
    return found


def check_used(notes: Mapping[str, str], known: Iterable[str]) -> None:
    """A note about a sample that is not there would be lost without a word. Raises UsageError."""
    if stray := sorted(notes.keys() - set(known)):
        raise _invalid(f"there is a note about {stray[0][:80]!r}, but no such sample")


def _invalid(message: str) -> UsageError:
    remedy = 'write NAME=TEXT, or a file {"NAME": "TEXT"}; NAME may be REQUEST_ID/NAME'
    return UsageError(message, remedy=remedy, code="invalid_notes")
