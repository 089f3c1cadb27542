from __future__ import annotations

import pytest

from cosmos3_serve.errors import ExitCode, StorageAuthorizationError, UsageError
from cosmos3_serve.storage.roots import ROOTS_ENV, AllowedRoots
from cosmos3_serve.storage.uri import S3Uri, parse_s3


@pytest.mark.parametrize(
    "roots, uri, allowed",
    [
        ("s3://b", "s3://b/any/thing", True),
        ("s3://b/", "s3://b/any", True),
        ("s3://b", "s3://bb/any", False),
        ("s3://b/in", "s3://b/in/x", True),
        ("s3://b/in/", "s3://b/in/x", True),
        ("s3://b/in", "s3://b/in", True),
        ("s3://b/in", "s3://b/inner/x", False),
        ("s3://b/in", "s3://b/in.png", False),
        ("s3://b/in", "s3://b/IN/x", False),
        ("s3://B/in", "s3://b/in/x", True),
        ("s3://b/a%20b", "s3://b/a b/x", True),
        ("s3://b/in", "s3://c/in/x", False),
        (" , s3://b/in ,, s3://c", "s3://c/x", True),
        ("s3://b/a%2Cb", "s3://b/a,b/x", True),
        ("", "s3://b/x", False),
        (" , ", "s3://b/x", False),
    ],
)
def test_a_root_allows_its_bucket_and_whole_prefix_parts(roots: str, uri: str, allowed: bool) -> None:
    book = AllowedRoots.parse(roots)
    if allowed:
        book.authorize(parse_s3(uri))
        return
    with pytest.raises(StorageAuthorizationError) as caught:
        book.authorize(parse_s3(uri))
    assert caught.value.detail == "read S3 URI is outside the configured bucket/prefix roots"
    assert caught.value.status == 400
    assert ROOTS_ENV in caught.value.remedy


@pytest.mark.parametrize(
    "text", ["b/in", "/data", "s3://", "s3://b/../x", "s3://b/in?x", "s3://u@b/in", "s3://b:9/in", "s3://b/in//x", "*"]
)
def test_a_malformed_root_stops_the_start_and_is_named(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        AllowedRoots.parse(f"s3://good/root,{text}")
    assert caught.value.exit_code == ExitCode.INPUT
    assert [e.field for e in caught.value.errors] == [f"{ROOTS_ENV}[1]"]
    assert ROOTS_ENV in caught.value.detail


def test_every_malformed_root_is_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        AllowedRoots.parse("x, s3://b ,y")
    assert [e.field for e in caught.value.errors] == [f"{ROOTS_ENV}[0]", f"{ROOTS_ENV}[2]"]


def test_repeated_roots_are_kept_once() -> None:
    assert AllowedRoots.parse("s3://b/in,s3://B/in/").roots == (S3Uri("b", "in"),)
