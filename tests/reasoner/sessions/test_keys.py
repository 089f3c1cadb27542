"""Session keys: the header matrix and what may never be shared or leak."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos3_serve.errors import InvalidRequest, UsageError
from cosmos3_serve.reasoner.sessions.keys import MAX_SESSION_BYTES, MediaItem, SessionKeys

SECRET = b"0123456789abcdef"
KEYS = SessionKeys(SECRET)
DYNAMO, PLAIN = b"x-dynamo-session-id", b"x-session-id"
A = KEYS.from_headers([(PLAIN, b"a")], "tenant")
assert A is not None


@pytest.mark.parametrize(
    "headers",
    [
        [(b"X-Session-ID", b"a")],
        [(b"x-session-id", b"a")],
        [(b"X-SESSION-ID", b"a")],
        [(b"x_session_id", b"a")],
        [(b"X_Session-Id", b"a")],
        [(DYNAMO, b"a")],
        [(PLAIN, b"  a\t")],
        [(PLAIN, b"a"), (PLAIN, b"a")],
        [(PLAIN, b"a"), (b"x_session_id", b"a")],
        [(PLAIN, b""), (PLAIN, b"a")],
        [(DYNAMO, b""), (PLAIN, b"a")],
        [(DYNAMO, b" "), (PLAIN, b"a")],
        [(PLAIN, b"b"), (DYNAMO, b"a")],
        [(PLAIN, b"b" * 10_240), (DYNAMO, b"a")],
        [(PLAIN, b"b"), (PLAIN, b"c"), (DYNAMO, b"a")],
        [(b"host", b"x"), (PLAIN, b"a"), (b"x-request-id", b"z")],
    ],
)
def test_these_headers_mean_the_same_session(headers: list[tuple[bytes, bytes]]) -> None:
    key = KEYS.from_headers(headers, "tenant")
    assert key is not None
    assert key.digest == A.digest


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(PLAIN, b"")],
        [(DYNAMO, b"  "), (PLAIN, b"\t")],
        [(b"x-correlation-id", b"a")],
        [(b"session-id", b"a")],
        [(b"x-request-id", b"a")],
        [(b"x-session-id-2", b"a")],
    ],
)
def test_these_headers_name_no_session(headers: list[tuple[bytes, bytes]]) -> None:
    assert KEYS.from_headers(headers, "tenant") is None


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ([(PLAIN, b"a" * 257)], "257 bytes"),
        ([(PLAIN, b"a" * 10_240)], "10240 bytes"),
        ([(PLAIN, b"a"), (PLAIN, b"b")], "different values"),
        ([(PLAIN, b"a"), (b"x_session_id", b"b")], "different values"),
        ([(DYNAMO, b"a\x00b")], "control character"),
        ([(DYNAMO, b"a\x7f")], "control character"),
    ],
)
def test_these_headers_are_refused_by_name(headers: list[tuple[bytes, bytes]], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as refused:
        KEYS.from_headers(headers, "tenant")
    assert refused.value.status == 400
    assert refused.value.stable_code == "invalid_session_key"
    assert refused.value.remedy
    assert "aaaa" not in refused.value.detail


@pytest.mark.parametrize("value", [b"a" * MAX_SESSION_BYTES, "größe-日本".encode(), b"\xff\xfe\x80", b"a b,c;d"])
def test_opaque_values_are_taken_as_they_are(value: bytes) -> None:
    assert KEYS.from_headers([(PLAIN, value)], "tenant") == KEYS.from_headers([(PLAIN, value)], "tenant")


def test_configured_headers_replace_the_defaults_in_their_order() -> None:
    keys = SessionKeys(SECRET, ["X-Correlation-ID", "thread_id"])
    assert keys.from_headers([(PLAIN, b"a")], "t") is None
    both = keys.from_headers([(b"thread-id", b"b"), (b"x-correlation-id", b"a")], "t")
    assert both is not None
    assert both.source == "X-Correlation-ID"


@pytest.mark.parametrize("make", [lambda: SessionKeys(b"short"), lambda: SessionKeys(SECRET, ["no space allowed"])])
def test_bad_settings_are_refused(make: Callable[[], SessionKeys]) -> None:
    with pytest.raises(UsageError):
        make()


def test_the_content_decides_where_no_header_does() -> None:
    image, video, other = MediaItem("image", "0" * 64), MediaItem("video", "1" * 64), MediaItem("video", "2" * 64)
    key = KEYS.of_request([], "t", [image, video, other])
    assert key == KEYS.of_request([(PLAIN, b"")], "t", [video])
    assert key is not None
    assert key.source == "content"
    assert key != KEYS.of_request([], "t", [other])
    assert KEYS.of_request([], "t", [image]) is not None
    assert KEYS.of_request([], "t") is None
    assert KEYS.of_request([(PLAIN, b"a")], "t", [video]) == KEYS.from_headers([(PLAIN, b"a")], "t")


def test_a_header_that_spells_a_hash_is_not_that_content() -> None:
    digest = "1" * 64
    by_header = KEYS.from_headers([(PLAIN, digest.encode())], "t")
    by_content = KEYS.from_media([MediaItem("video", digest)], "t")
    assert by_header is not None
    assert by_content is not None
    assert by_header.digest != by_content.digest


text = st.binary(min_size=1, max_size=MAX_SESSION_BYTES).filter(
    lambda b: b == b.strip(b" \t") and all(c >= 0x20 and c != 0x7F for c in b)
)


@given(a=text, b=text, s=st.text(max_size=20), t=st.text(max_size=20))
def test_keys_are_equal_only_for_equal_tenant_and_value(a: bytes, b: bytes, s: str, t: str) -> None:
    one, two = KEYS.from_headers([(PLAIN, a)], s), KEYS.from_headers([(PLAIN, b)], t)
    assert (one == two) == ((a, s) == (b, t))


@given(
    headers=st.lists(
        st.tuples(st.sampled_from([DYNAMO, PLAIN, b"x_session_id", b"X-Other"]), st.binary(max_size=300)), max_size=5
    )
)
def test_any_header_list_gives_a_key_none_or_a_typed_refusal(headers: list[tuple[bytes, bytes]]) -> None:
    try:
        key = KEYS.from_headers(headers, "t")
    except InvalidRequest:
        return
    assert key is None or (len(key.digest) == 48 and int(key.digest, 16) >= 0)


def test_every_key_of_a_tenant_begins_with_its_tag_and_no_other_one_does() -> None:
    keys = {
        tenant: [
            KEYS.from_headers([(PLAIN, b"a")], tenant),
            KEYS.named(b"b", tenant),
            KEYS.from_media([MediaItem("video", "0" * 64)], tenant),
        ]
        for tenant in ("one", "two")
    }
    for tenant, found in keys.items():
        for other in keys:
            begins = [key is not None and key.digest.startswith(KEYS.owner(other)) for key in found]
            assert begins == [tenant == other] * 3
    assert KEYS.owner("one") != SessionKeys(b"f" * 16).owner("one")


def test_a_key_shows_nothing_of_what_was_sent() -> None:
    key = KEYS.from_headers([(PLAIN, b"alice@example.com")], "tenant")
    assert "alice" not in repr(key)
    assert "tenant" not in repr(key)
