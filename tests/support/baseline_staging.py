"""Which input files the baseline refuses, and in which words (docs/contract.md 5 and 6).

Written without the package under test. Nothing is fetched: the support server's media depend on no input.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

HINTS = ("edge", "blur", "depth", "seg", "wsm")
INPUTS = {
    *(("vision_path",), ("sound_path",), ("action_path",), ("prompt_path",), ("negative_prompt_file",)),
    *((hint, "control_path") for hint in HINTS),
}
OWNED = ("defaults_file", "output_dir")


class StorageRefused(ValueError):
    """Answered with 400 and this text."""


def check_inputs(sample: dict[str, Any], roots: Sequence[str]) -> None:
    """
    Raises:
        StorageRefused: the first thing that the baseline finds wrong.
    """
    entries = list(_entries(sample, ()))
    if any(key in OWNED for _, key, _ in entries):
        raise StorageRefused("sample filesystem configuration is server-owned")
    for place, key, value in entries:
        if place in INPUTS:
            _check_uri(value, roots)
        elif key.endswith(("_path", "_file", "_dir", "_url")):
            raise StorageRefused("unsupported sample file input")


def _entries(item: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Every key with a value at any depth; elements of a list keep the place of the list."""
    if isinstance(item, list):
        for child in item:
            yield from _entries(child, place)
    elif isinstance(item, dict):
        for key, child in item.items():
            if child is not None:
                yield (*place, key), key, child
                yield from _entries(child, (*place, key))


def _check_uri(value: Any, roots: Sequence[str]) -> None:
    if not isinstance(value, str) or not value.startswith("s3://"):
        raise StorageRefused("sample inputs require an authorized s3:// object")
    bucket, key = _parse(value)
    allowed = (_parse(root) for root in roots)
    if not any(bucket == b and (not k or key == k or key.startswith(k + "/")) for b, k in allowed):
        raise StorageRefused("read S3 URI is outside the configured bucket/prefix roots")
    if not key or value.endswith("/"):
        raise StorageRefused("sample inputs must identify a single S3 object")
    if re.search(r"[?#\t\r\n]", key) or unquote(key) != key:
        raise StorageRefused("conditioning S3 key cannot be downloaded exactly")


def _parse(text: str) -> tuple[str, str]:
    url = urlsplit(text.strip())
    key = unquote(url.path).lstrip("/").removesuffix("/")
    if url.query or url.fragment or "@" in url.netloc or ":" in url.netloc or not url.netloc:
        raise StorageRefused("S3 URI must be a canonical s3://bucket/key")
    if "\\" in key or (key and any(part in ("", ".", "..") for part in key.split("/"))):
        raise StorageRefused("S3 URI must be a canonical s3://bucket/key")
    return url.netloc.lower(), key
