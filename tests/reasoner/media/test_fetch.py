"""Fetching, on loopback with a resolver of our own: what is asked, what is refused, and what is only asked once."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.web import Asked, Web, certificate, page, web

from cosmos3_serve.errors import InputError, NotReady, StorageAuthorizationError
from cosmos3_serve.media.refusal import Refused
from cosmos3_serve.reasoner.media.address import AllowList
from cosmos3_serve.reasoner.media.fetch import Fetcher
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.parts import UrlSource
from cosmos3_serve.reasoner.media.store import MediaStore
from cosmos3_serve.storage.roots import AllowedRoots

BODY = b"some content" * 100
SHA = hashlib.sha256(BODY).hexdigest()


class Names:
    """A resolver; each name's answers in turn, the last one for ever."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = {"media.test": [["127.0.0.1"]], **{k.replace("_", "."): v for k, v in answers.items()}}
        self.looked_up: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.looked_up.append(host)
        answers = self.answers.get(host)
        if answers is None:
            raise OSError("no such name")
        return answers.pop(0) if len(answers) > 1 else answers[0]


@pytest.fixture
async def server() -> AsyncIterator[Web]:
    async with web() as state:
        state.pages["/a.mp4"] = page(BODY, content_type="video/mp4")
        yield state


@pytest.fixture
def store(tmp_path: Path) -> MediaStore:
    store = MediaStore(tmp_path, max_bytes=10**7)
    store.open()
    return store


def fetcher(
    store: MediaStore, server: Web, names: Names | None = None, allow: tuple[str, ...] = (), **more: Any
) -> Fetcher:
    limits = MediaLimits(**{"max_media_bytes": 10**6, "fetch_timeout_s": 5, **more.pop("limits", {})})
    entries = (f"media.test:{server.port}", *allow)
    return Fetcher(
        store,
        limits,
        allow=AllowList.parse(entries),
        roots=more.pop("roots", AllowedRoots()),
        resolver=names or Names(),
        **more,
    )


async def get(fetch: Fetcher, url: str, tenant: str = "t") -> str:
    scheme: Any = url.partition(":")[0]
    fetched, blob = await fetch.fetch(UrlSource(scheme, url), tenant)
    with blob:
        assert hashlib.sha256(blob.read()).hexdigest() == fetched.sha256
    return fetched.sha256


async def refusal(fetch: Fetcher, url: str) -> Refused:
    with pytest.raises(Refused) as caught:
        await get(fetch, url)
    return caught.value


async def test_a_content_arrives_and_the_request_says_little(server: Web, store: MediaStore) -> None:
    assert await get(fetcher(store, server), server.url("/a.mp4?sig=x")) == SHA
    (asked,) = server.asked
    assert asked.path == "/a.mp4?sig=x"
    assert asked.headers["host"] == f"media.test:{server.port}"
    assert asked.headers["accept-encoding"] == "identity"
    assert not {"authorization", "cookie", "referer"} & asked.headers.keys()


async def test_proxies_of_the_environment_are_not_asked(
    server: Web, store: MediaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert await get(fetcher(store, server), server.url("/a.mp4")) == SHA


# ---- where it may not go --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "answers"),
    [
        ("127.0.0.1", []),
        ("localhost", ["127.0.0.1"]),
        ("private.test", ["10.0.0.5"]),
        ("mixed.test", ["93.184.216.34", "192.168.0.1"]),
        ("metadata.test", ["169.254.169.254"]),
        ("mapped.test", ["::ffff:127.0.0.1"]),
        ("zero.test", ["0.0.0.0"]),
        ("link.test", ["fe80::1%lo"]),
        ("[::1]", []),
        ("169.254.169.254", []),
    ],
)
async def test_addresses_inside_are_refused_and_never_connected_to(
    server: Web, store: MediaStore, host: str, answers: list[str]
) -> None:
    names = Names(**{host.replace(".", "_"): [answers]}) if answers else Names()
    refused = await refusal(fetcher(store, server, names), f"https://{host}/a.mp4")
    assert (refused.status, refused.code) == (400, "media_url_refused")
    assert server.connections == 0


async def test_a_redirect_is_judged_as_a_url(server: Web, store: MediaStore) -> None:
    names = Names(inside_test=[["10.0.0.1"]], other_test=[["127.0.0.1"]])
    for location in (
        "https://inside.test/",
        "http://169.254.169.254/latest/meta-data/",
        f"http://127.0.0.1:{server.port}/a.mp4",
        f"http://other.test:{server.port}/a.mp4",
        "https://media.test:22/",
        "file:///etc/passwd",
        f"http://user@media.test:{server.port}/a.mp4",
    ):
        server.pages["/go"] = page(status="302 Found", location=location)
        refused = await refusal(fetcher(store, server, names), server.url("/go"))
        assert refused.code == "media_url_refused", location
    assert {asked.path for asked in server.asked} == {"/go"}


async def test_redirects_are_followed_a_few_times(server: Web, store: MediaStore) -> None:
    server.pages["/1"] = page(status="301 Moved", location="/2")
    server.pages["/2"] = page(status="307 Temporary", location=server.url("/a.mp4"))
    assert await get(fetcher(store, server), server.url("/1")) == SHA
    server.pages["/loop"] = page(status="302 Found", location="/loop")
    server.asked.clear()
    refused = await refusal(fetcher(store, server), server.url("/loop"))
    assert "redirects more than 5 times" in refused.message
    assert len(server.asked) == 6


async def test_the_checked_address_is_the_one_connected_to(server: Web, store: MediaStore) -> None:
    """A name that answers differently the second time is not asked a second time."""
    names = Names(media_test=[["127.0.0.1"], ["169.254.169.254"]])
    assert await get(fetcher(store, server, names), server.url("/a.mp4")) == SHA
    assert names.looked_up == ["media.test"]
    refused = await refusal(fetcher(store, server, names), server.url("/a.mp4"))
    assert refused.code == "media_url_refused"


async def test_the_next_address_is_tried_where_one_is_deaf(server: Web, store: MediaStore) -> None:
    names = Names(media_test=[["127.0.0.2", "127.0.0.1"]])
    assert await get(fetcher(store, server, names), server.url("/a.mp4")) == SHA


async def test_https_is_checked_against_the_name_not_the_address(tmp_path: Path, store: MediaStore) -> None:
    server_side, client_side = certificate(tmp_path, "media.test")
    async with web(server_side) as server:
        server.pages["/a.mp4"] = page(BODY)
        names = Names(other_test=[["127.0.0.1"]])
        fetch = fetcher(store, server, names, (f"other.test:{server.port}",), tls=client_side)
        assert await get(fetch, server.url("/a.mp4", scheme="https")) == SHA
        refused = await refusal(fetch, server.url("/a.mp4", "other.test", "https"))
        assert "certificate" in refused.message


# ---- what the server says -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (page(b"gone", "404 Not Found"), "media_upstream_error", "answered 404"),
        (page(b"no", "403 Forbidden"), "media_upstream_error", "answered 403"),
        (page(b"oops", "503 Unavailable"), "media_upstream_error", "answered 503"),
        (page(BODY, "206 Partial"), "media_upstream_error", "answered 206"),
        (page(b"", "304 Not Modified"), "media_upstream_error", "answered 304"),
        (page(b"", content_type="video/mp4"), "media_empty", "0 bytes"),
        (page(b"<html>", content_type="text/html; charset=utf-8"), "media_not_media", "text/html"),
        (page(b"{}", content_type="application/json"), "media_not_media", "application/json"),
        (page(BODY, content_encoding="gzip"), "media_upstream_error", "gzip"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort", "media_fetch_failed", "broke"),
        (b"not http at all\r\n\r\n", "media_fetch_failed", "broke"),
        (b"", "media_fetch_failed", "broke"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 300_000 + b"\r\n\r\n", "media_fetch_failed", "broke"),
    ],
)
async def test_answers_that_are_no_media(server: Web, store: MediaStore, answer: bytes, code: str, words: str) -> None:
    server.pages["/clip.mp4"] = answer
    refused = await refusal(fetcher(store, server), server.url("/clip.mp4?token=secret"))
    assert (refused.status, refused.code) == (400, code)
    assert words in refused.message
    assert "media.test/clip.mp4" in refused.message
    assert "secret" not in str(refused.as_dict())
    assert store.used_bytes == 0


async def test_nobody_there(server: Web, store: MediaStore) -> None:
    fetch = fetcher(store, server, None, ("media.test:1",))
    assert (await refusal(fetch, "http://media.test:1/")).code == "media_fetch_failed"
    assert (await refusal(fetch, "https://unknown.test/")).code == "media_fetch_failed"


async def test_the_byte_cap_holds_with_and_without_an_announcement(server: Web, store: MediaStore) -> None:
    sent = 0

    async def endless(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + bytes(65536) + b"\r\n")
            await writer.drain()
            sent += 65536

    server.pages["/endless"] = endless
    server.pages["/announced"] = b"HTTP/1.1 200 OK\r\ncontent-length: 5000000000\r\n\r\n"
    for path in ("/endless", "/announced"):
        refused = await refusal(fetcher(store, server), server.url(path))
        assert (refused.status, refused.code) == (413, "media_too_large")
        assert "1000000 bytes" in refused.message
    assert sent < 30 * 10**6, "the stream is closed soon after the cap"
    assert store.used_bytes == 0


async def test_the_time_budget_covers_the_whole_fetch(server: Web, store: MediaStore) -> None:
    async def drip(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    server.pages["/drip"] = drip
    refused = await refusal(fetcher(store, server, limits={"fetch_timeout_s": 0.3}), server.url("/drip?k=secret"))
    assert refused.code == "media_fetch_timeout"
    assert "media.test/drip" in refused.message
    assert "secret" not in refused.message


# ---- asked once, and again ------------------------------------------------------------------------------------------


async def test_the_same_url_at_the_same_time_is_fetched_once_per_tenant(server: Web, store: MediaStore) -> None:
    release = asyncio.Event()

    async def held(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(page(BODY))

    server.pages["/held"] = held
    fetch = fetcher(store, server)
    waiting = [asyncio.ensure_future(get(fetch, server.url("/held"))) for _ in range(5)]
    other = asyncio.ensure_future(get(fetch, server.url("/held"), "other tenant"))
    await server.until_asked(2)
    waiting[0].cancel()
    release.set()
    assert await asyncio.gather(*waiting[1:], other) == [SHA] * 5
    assert len(server.asked) == 2


async def test_a_fetch_that_nobody_waits_for_ends(server: Web, store: MediaStore) -> None:
    closed = asyncio.Event()

    async def watch(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")
        try:
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)
        finally:
            closed.set()

    server.pages["/watch"] = watch
    task = asyncio.ensure_future(get(fetcher(store, server), server.url("/watch")))
    await server.until_asked()
    task.cancel()
    await asyncio.wait_for(closed.wait(), 5)
    assert store.used_bytes == 0


@pytest.mark.parametrize(
    ("headers", "question"),
    [
        ({"etag": '"v1"'}, ("if-none-match", '"v1"')),
        ({"last_modified": "Mon, 01 Jan 2024 00:00:00 GMT"}, ("if-modified-since", "Mon, 01 Jan 2024 00:00:00 GMT")),
    ],
)
async def test_a_server_may_say_that_nothing_changed(
    server: Web, store: MediaStore, headers: dict[str, str], question: tuple[str, str]
) -> None:
    server.pages["/v.mp4"] = page(BODY, **headers)
    fetch = fetcher(store, server)
    await get(fetch, server.url("/v.mp4"))
    server.pages["/v.mp4"] = page(status="304 Not Modified")
    assert await get(fetch, server.url("/v.mp4")) == SHA
    assert server.asked[1].headers[question[0]] == question[1]
    assert not set(server.asked[0].headers) & {"if-none-match", "if-modified-since"}
    with pytest.raises(Refused, match="304"):
        await get(fetch, server.url("/v.mp4"), "other tenant")


async def test_a_changed_content_is_fetched_and_an_unmarked_one_always(server: Web, store: MediaStore) -> None:
    server.pages["/v.mp4"] = page(BODY, etag='"v1"')
    fetch = fetcher(store, server)
    await get(fetch, server.url("/v.mp4"))
    server.pages["/v.mp4"] = page(b"new", etag='"v2"')
    assert await get(fetch, server.url("/v.mp4")) == hashlib.sha256(b"new").hexdigest()
    await get(fetch, server.url("/a.mp4"))
    server.pages["/a.mp4"] = page(b"other")
    assert await get(fetch, server.url("/a.mp4")) == hashlib.sha256(b"other").hexdigest()
    assert "if-none-match" not in server.asked[-1].headers


async def test_a_content_that_the_store_dropped_is_asked_for_unconditionally(server: Web, store: MediaStore) -> None:
    server.pages["/v.mp4"] = page(BODY, etag='"v1"')
    fetch = fetcher(store, server)
    await get(fetch, server.url("/v.mp4"))
    store.forget(SHA)
    assert await get(fetch, server.url("/v.mp4")) == SHA
    assert "if-none-match" not in server.asked[-1].headers


async def test_too_many_waiting_fetches_are_told_to_come_again(server: Web, store: MediaStore) -> None:
    async def never(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    server.pages["/never"] = never
    fetch = fetcher(store, server, limits={"max_fetches": 1, "max_waiting": 1})
    tasks = [asyncio.ensure_future(get(fetch, server.url(f"/never?{i}"))) for i in range(2)]
    async with asyncio.timeout(10):
        while not fetch._slots.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    with pytest.raises(NotReady) as caught:
        await get(fetch, server.url("/a.mp4"))
    assert caught.value.stable_code == "media_busy"
    assert caught.value.retry_after_s
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---- s3 -------------------------------------------------------------------------------------------------------------


async def test_s3_only_below_the_roots(server: Web, store: MediaStore) -> None:
    fetch = fetcher(store, server, roots=AllowedRoots.parse("s3://bucket/in"))
    for url in (
        "s3://other/in/a.mp4",
        "s3://bucket/inner/a.mp4",
        "s3://bucket/in/../a.mp4",
        "s3://bucket/in/",
        "s3://",
    ):
        with pytest.raises(StorageAuthorizationError):
            await get(fetch, url)


class Objects:
    """Object storage with one object."""

    def __init__(self, body: bytes, etag: str | None) -> None:
        self.body, self.etag, self.reads = body, etag, 0

    async def head(self, key: str) -> Any:
        from cosmos3_serve.storage.store import ObjectInfo

        return ObjectInfo(key, len(self.body), self.etag) if key == "in/a.mp4" else None

    async def get_stream(self, key: str, *, max_bytes: int | None = None, **_: Any) -> AsyncIterator[bytes]:
        from cosmos3_serve.errors import LimitExceeded

        self.reads += 1
        if max_bytes is not None and len(self.body) > max_bytes:
            raise LimitExceeded("too large", code="object_too_large")
        yield self.body


async def test_s3_objects_are_read_again_only_when_they_changed(
    server: Web, store: MediaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = Objects(BODY, "e1")
    monkeypatch.setattr("cosmos3_serve.reasoner.media.fetch.open_object", lambda url, environ: (objects, url[12:]))
    fetch = fetcher(store, server, roots=AllowedRoots.parse("s3://bucket/in"))
    assert await get(fetch, "s3://bucket/in/a.mp4") == SHA
    assert await get(fetch, "s3://bucket/in/a.mp4") == SHA
    assert objects.reads == 1
    objects.etag = "e2"
    await get(fetch, "s3://bucket/in/a.mp4")
    assert objects.reads == 2
    assert (await refusal(fetch, "s3://bucket/in/b.mp4")).code == "media_not_found"
    objects.body, objects.etag = b"", "e3"
    assert (await refusal(fetch, "s3://bucket/in/a.mp4")).code == "media_empty"
    objects.body, objects.etag = bytes(10**6 + 1), "e4"
    assert (await refusal(fetch, "s3://bucket/in/a.mp4")).code == "media_too_large"


def test_refusals_become_typed_errors_with_the_part() -> None:
    error = Refused(413, "media_too_large", "found", "fix").as_error("messages[0].content[1]")
    assert isinstance(error, InputError)
    assert (error.status, error.stable_code) == (413, "media_too_large")
    assert error.errors[0].field == "messages[0].content[1]"
