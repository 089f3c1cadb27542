"""A list of SHA-256 sums that was made where the outputs lay, before they were copied (`sha256sum`'s format)."""

from __future__ import annotations

import re

from cosmos3_serve.errors import ValidationFailed

MAX_BYTES = 64 * 1024 * 1024
LINE = re.compile(r"\\?([0-9a-fA-F]{64}) [ *](.+)")


def parse_hashes(text: str, request_id: str) -> dict[str, str]:
    """Path relative to the output root to hash, for the files of one request; lines about other files are left out.

    A list may have been made in the output root, above it, or in the request's own directory.

    Raises:
        ValidationFailed: code `hashes_invalid`: a line is no sum, or two lines disagree.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        if not match:
            raise _invalid(f"line {number} is not `<sha256>  <path>`")
        digest, path = match[1].lower(), match[2].removeprefix("./")
        before, marker, rest = f"/{path}".rpartition(f"/{request_id}/")
        name = f"{request_id}/{rest}" if marker else "" if path.startswith("/") else f"{request_id}/{path}"
        if name and found.setdefault(name, digest) != digest:
            raise _invalid(f"line {number} contradicts an earlier line about the same file")
        del before
    return found


def _invalid(message: str) -> ValidationFailed:
    return ValidationFailed(
        f"the list of hashes cannot be used: {message}",
        remedy="make it with: cd <output root> && find <request id> -type f -exec sha256sum {} +",
        code="hashes_invalid",
    )
