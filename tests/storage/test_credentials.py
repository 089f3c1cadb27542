from __future__ import annotations

import pytest

from cosmos3_serve.errors import UsageError
from cosmos3_serve.storage.bucket import bucket_store
from cosmos3_serve.storage.credentials import S3Access

FULL = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "AWS_ACCESS_KEY_ID": "the-key-id",
    "AWS_SECRET_ACCESS_KEY": "the-secret",
    "AWS_SESSION_TOKEN": "the-session",
    "AWS_REGION": "eu-north1",
}


def test_everything_is_read() -> None:
    access = S3Access.from_environ(FULL)
    assert access == S3Access("http://127.0.0.1:9", "eu-north1", "the-key-id", "the-secret", "the-session")
    assert access.allow_http


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"])
@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_missing_variable_is_named(name: str, value: str | None) -> None:
    environ = {k: v for k, v in FULL.items() if k != name} | ({} if value is None else {name: value})
    with pytest.raises(UsageError) as caught:
        S3Access.from_environ(environ)
    assert caught.value.stable_code == "s3_not_configured"
    others = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"} - {name}
    assert name in caught.value.detail
    assert not any(other in caught.value.detail for other in others)


def test_all_missing_variables_are_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        S3Access.from_environ({})
    for name in ("AWS_ENDPOINT_URL", "NEBIUS_S3_ENDPOINT", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert name in caught.value.detail


def test_either_endpoint_variable_serves_and_the_general_one_wins() -> None:
    environ = {k: v for k, v in FULL.items() if k != "AWS_ENDPOINT_URL"}
    environ["NEBIUS_S3_ENDPOINT"] = "https://storage.example/"
    assert S3Access.from_environ(environ).endpoint == "https://storage.example"
    assert not S3Access.from_environ(environ).allow_http
    assert S3Access.from_environ(environ | FULL).endpoint == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    "endpoint",
    ["storage.example", "ftp://x", "https://", "https://u:p@x", "https://x?y", "https://x:port", "file:///x"],
)
def test_an_endpoint_is_an_http_url(endpoint: str) -> None:
    with pytest.raises(UsageError) as caught:
        S3Access.from_environ(FULL | {"AWS_ENDPOINT_URL": endpoint})
    assert caught.value.stable_code == "invalid_s3_endpoint"
    assert endpoint not in caught.value.detail, "an endpoint may carry a password"


def test_repr_holds_no_credential() -> None:
    shown = repr(S3Access.from_environ(FULL))
    assert not any(FULL[name] in shown for name in FULL if name not in ("AWS_ENDPOINT_URL", "AWS_REGION"))


def test_one_store_per_bucket_endpoint_and_identity() -> None:
    first = bucket_store("one", FULL)
    assert bucket_store("one", dict(FULL)) is first
    assert bucket_store("two", FULL) is not first
    assert bucket_store("one", FULL | {"AWS_ENDPOINT_URL": "http://127.0.0.1:10"}) is not first
    assert bucket_store("one", FULL | {"AWS_SECRET_ACCESS_KEY": "rotated"}) is not first


def test_the_cache_of_stores_is_bounded() -> None:
    from cosmos3_serve.storage.bucket import STORES_KEPT, _shared

    for number in range(STORES_KEPT + 5):
        bucket_store(f"bucket-{number}", FULL)
    assert _shared.cache_info().currsize == STORES_KEPT
