from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos3_serve.errors import StorageAuthorizationError
from cosmos3_serve.storage.uri import MAX_KEY_BYTES, S3Uri, check_key, parse_s3, require_object

PARSED = {
    "s3://b": ("b", "", False),
    "s3://b/": ("b", "", False),
    "s3://b//": ("b", "", False),
    "s3://b/k": ("b", "k", False),
    "  s3://b/k \n": ("b", "k", False),
    "S3://b/k": ("b", "k", False),
    "s3://Bucket/K": ("bucket", "K", False),
    "s3://b/a%2Fb.png": ("b", "a/b.png", False),
    "s3://b//k": ("b", "k", False),
    "s3://b/%2Fk": ("b", "k", False),
    "s3://b/a/": ("b", "a", True),
    "s3://b/a%2F": ("b", "a", True),
    "s3://b/a b": ("b", "a b", False),
    "s3://b/a%20b": ("b", "a b", False),
    "s3://b/a+b": ("b", "a+b", False),
    "s3://b/a%2Bb": ("b", "a+b", False),
    "s3://b/a%2520b": ("b", "a%20b", False),
    "s3://b/100%": ("b", "100%", False),
    "s3://b/a%zz": ("b", "a%zz", False),
    "s3://b/%C3%A9/日本.png": ("b", "é/日本.png", False),
    "s3://b/e\u0301": ("b", "e\u0301", False),
    "s3://b/a;v=1": ("b", "a;v=1", False),
    "s3://b/a:b@c": ("b", "a:b@c", False),
    "s3://b/...": ("b", "...", False),
    "s3://b/a%3Fb%23c": ("b", "a?b#c", False),
    "s3://b/a%09b": ("b", "a\tb", False),
    "s3://my.bucket-1_x/k": ("my.bucket-1_x", "k", False),
}

REFUSED = {
    "": "start with s3",
    "b/k": "start with s3",
    "s3:b/k": "start with s3",
    "s3:/b/k": "start with s3",
    "file:///b/k": "start with s3",
    "https://b/k": "start with s3",
    "/b/k": "start with s3",
    "s3://": "no bucket",
    "s3:///k": "no bucket",
    "s3://user@b/k": "user",
    "s3://user:pass@b/k": "user",
    "s3://b:9000/k": "port",
    "s3://b:/k": "port",
    "s3://[::1]/k": "port",
    "s3://b b/k": "canonical",
    "s3://é/k": "canonical",
    "s3://.b/k": "canonical",
    "s3://b%2Fc/k": "canonical",
    "s3://b\\c/k": "canonical",
    "s3://b/k?versionId=1": "query",
    "s3://b/k?": "query",
    "s3://b?x": "query",
    "s3://b/k#f": "fragment",
    "s3://b#f": "fragment",
    "s3://b/a//c": "empty",
    "s3://b/a//": "empty",
    "s3://b/a%2F%2Fb": "empty",
    "s3://b/.": "'.' or '..'",
    "s3://b/./k": "'.' or '..'",
    "s3://b/../k": "'.' or '..'",
    "s3://b/a/..": "'.' or '..'",
    "s3://b/%2e%2e/k": "'.' or '..'",
    "s3://b/a/%2E%2e%2Fk": "'.' or '..'",
    "s3://b/a\\b": "backslash",
    "s3://b/a%5Cb": "backslash",
    "s3://b/a\tb": "control",
    "s3://b/a\r\nb": "control",
    "s3://b/a\x00b": "control",
    "s3://b/%FF": "UTF-8",
    "s3://b/\ud800": "UTF-8",
    "s3://b/" + "é" * (MAX_KEY_BYTES // 2) + "x": "longer than 1024 bytes",
}


@pytest.mark.parametrize("text", PARSED)
def test_parses(text: str) -> None:
    uri = parse_s3(text)
    assert (uri.bucket, uri.key, uri.directory) == PARSED[text]
    assert parse_s3(str(uri)) == uri, "what is printed must mean the same object"


@pytest.mark.parametrize("text", REFUSED)
def test_refuses_with_a_reason_and_never_repeats_the_text(text: str) -> None:
    with pytest.raises(StorageAuthorizationError) as caught:
        parse_s3(text)
    assert caught.value.status == 400
    assert caught.value.stable_code == "malformed_s3_uri"
    assert REFUSED[text] in caught.value.detail
    assert "pass" not in caught.value.detail


@pytest.mark.parametrize("value", [None, 3, b"s3://b/k", ["s3://b/k"], True])
def test_refuses_what_is_no_string(value: object) -> None:
    with pytest.raises(StorageAuthorizationError, match="not a string"):
        parse_s3(value)


@pytest.mark.parametrize("text", ["s3://b", "s3://b/", "s3://b/a/", "s3://b/a%2F"])
def test_an_input_is_one_object(text: str) -> None:
    with pytest.raises(StorageAuthorizationError) as caught:
        require_object(text)
    assert caught.value.detail == "sample inputs must identify a single S3 object"


@pytest.mark.parametrize(
    "text",
    ["s3://b/a%3Fb", "s3://b/a%23b", "s3://b/a%09b", "s3://b/a%0Db", "s3://b/a%0Ab", "s3://b/a%00", "s3://b/a%7F",
     "s3://b/a%2520b", "s3://b/a%252Fb", "s3://b/%252e%252e/k", "s3://b/a%20", "s3://b/x.mp4%E3%80%80"],
)  # fmt: skip
def test_an_input_key_must_survive_being_written_down(text: str) -> None:
    parse_s3(text)  # a URI, but not one that an input may use
    with pytest.raises(StorageAuthorizationError) as caught:
        require_object(text)
    assert caught.value.detail == "conditioning S3 key cannot be downloaded exactly"
    assert caught.value.remedy


@pytest.mark.parametrize(
    "text", ["s3://b/a b", "s3://b/a+b", "s3://b/a%2Fb", "s3://b/é/日本", "s3://b/100%", "s3://b//k"]
)
def test_an_input_key_that_survives(text: str) -> None:
    assert require_object(text) == parse_s3(text)


@pytest.mark.parametrize(
    "key, suffix, staged",
    [("a/B.PNG", ".png", ".PNG"), ("a.b/c", "", ".bin"), ("a.tar.gz", ".gz", ".gz"), ("x.é", ".é", ".bin"),
     ("x." + "a" * 16, "." + "a" * 16, "." + "a" * 16), ("x." + "a" * 17, "." + "a" * 17, ".bin"),
     (".hidden", "", ".bin"), ("x.m p", ".m p", ".bin"), ("x.mp4\n", ".mp4\n", ".bin")],
)  # fmt: skip
def test_suffixes(key: str, suffix: str, staged: str) -> None:
    assert S3Uri("b", key).suffix == suffix
    assert S3Uri("b", key).staged_suffix == staged


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "a/./b", "../a", "a\\b", "a\tb", "a\x7f", "\ud800", "x" * 1025]
)
def test_a_store_refuses_keys_it_would_change(key: str) -> None:
    with pytest.raises(StorageAuthorizationError) as caught:
        check_key(key)
    assert caught.value.stable_code == "invalid_key"


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused_and_printing_round_trips(tail: str) -> None:
    try:
        uri = parse_s3("s3://bucket/" + tail)
    except StorageAuthorizationError:
        return
    assert parse_s3(str(uri)) == uri
    assert parse_s3(str(uri)).directory == uri.directory
    assert not {"", ".", ".."} & set(uri.key.split("/")) or uri.key == ""


@given(st.text(min_size=1, max_size=40))
def test_what_an_input_may_name_reparses_to_itself(tail: str) -> None:
    try:
        uri = require_object("s3://bucket/" + tail)
    except StorageAuthorizationError:
        return
    assert check_key(uri.key) == uri.key
    assert parse_s3(f"s3://bucket/{uri.key}") == uri
