"""Artifacts over HTTP: whole, in parts, unchanged, gone, and never the event loop's problem."""

import asyncio
import os
import threading
from pathlib import Path

import httpx
import pytest
from support.batches import FakeDesk, make_front, until

from cosmos3_serve.generator.http import artifacts
from cosmos3_serve.generator.http.application import build_app
from cosmos3_serve.service.tokens import TokenBook

TOKEN = "right-token-123"
CONTENT = bytes(range(256)) * 4000  # a little more than three chunks
URL = "/v1/artifacts/r/a/vision.mp4"


@pytest.fixture
def batches(tmp_path: Path) -> FakeDesk:
    batches = FakeDesk()
    batches.put(tmp_path / "vision.mp4", "r/a/vision.mp4", CONTENT)
    batches.put(tmp_path / "empty.txt", "r/a/reasoner_text.txt", b"")
    return batches


@pytest.fixture
def client(batches: FakeDesk) -> httpx.AsyncClient:
    app = build_app(make_front(batches, TokenBook(TOKEN, None)))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://t", headers={"Authorization": f"Bearer {TOKEN}"})


async def test_the_whole_file_with_its_validators(client: httpx.AsyncClient, batches: FakeDesk) -> None:
    answer = await client.get(URL)
    assert answer.status_code == 200 and answer.content == CONTENT
    assert answer.headers["etag"] == f'"{batches.files["r/a/vision.mp4"][1].sha256}"'
    assert answer.headers["content-type"] == "video/mp4" and answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["last-modified"].endswith("GMT")
    head = await client.head(URL)
    assert head.status_code == 200 and head.content == b"" and head.headers["content-length"] == str(len(CONTENT))
    assert (await client.head(URL, headers={"Range": "bytes=0-1"})).status_code == 200
    empty = await client.get("/v1/artifacts/r/a/reasoner_text.txt")
    assert empty.status_code == 200 and empty.content == b"" and "utf-8" in empty.headers["content-type"]


async def test_serving_to_the_end_is_a_phase(batches: FakeDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    front = make_front(batches, TokenBook(TOKEN, None))
    transport = httpx.ASGITransport(app=build_app(front))
    named = 'cosmos3_generator_phase_seconds_count{phase="delivery"}'

    def served() -> str:
        lines = front.metrics.render().decode().splitlines()
        return next((line for line in lines if line.startswith(named)), "").rpartition(" ")[2]

    bearer = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://t", headers=bearer) as http:
        await http.head(URL)
        assert served() == ""  # nothing was served
        await http.get(URL)
        await http.get(URL, headers={"Range": "bytes=5-6"})
        assert served() == "2.0"
        monkeypatch.setattr(artifacts.os, "pread", lambda d, s, o: b"x" * 10 if o == 0 else b"")
        with pytest.raises(Exception, match="shorter"):
            await http.get(URL)
        assert served() == "2.0"  # broken off


@pytest.mark.parametrize(
    ("header", "first", "end"),
    [("bytes=0-0", 0, 1), ("bytes=10-19", 10, 20), ("bytes=1000-", 1000, len(CONTENT)), ("BYTES=5-6", 5, 7),
     ("bytes=-7", len(CONTENT) - 7, len(CONTENT)), (f"bytes=5-{10**12}", 5, len(CONTENT)),
     (f"bytes=-{10**12}", 0, len(CONTENT)), ("bytes=300000-700000", 300_000, 700_001)],
)  # fmt: skip
async def test_one_range(header: str, first: int, end: int, client: httpx.AsyncClient) -> None:
    answer = await client.get(URL, headers={"Range": header})
    assert answer.status_code == 206 and answer.content == CONTENT[first:end]
    assert answer.headers["content-range"] == f"bytes {first}-{end - 1}/{len(CONTENT)}"


@pytest.mark.parametrize("header", ["bytes=0-1,5-6", "items=0-1", "bytes=", "bytes=-", "bytes=9-3", "bytes=a-b", "0-1"])
async def test_what_is_no_single_range_gets_the_whole_file(header: str, client: httpx.AsyncClient) -> None:
    answer = await client.get(URL, headers={"Range": header})
    assert answer.status_code == 200 and len(answer.content) == len(CONTENT)


@pytest.mark.parametrize("header", [f"bytes={len(CONTENT)}-", f"bytes={10**15}-", "bytes=-0"])
async def test_a_range_beyond_the_file_is_416_with_its_size(header: str, client: httpx.AsyncClient) -> None:
    answer = await client.get(URL, headers={"Range": header})
    assert answer.status_code == 416 and answer.headers["content-range"] == f"bytes */{len(CONTENT)}"
    assert answer.json()["code"] == "range_not_satisfiable"


async def test_conditions(client: httpx.AsyncClient) -> None:
    whole = await client.get(URL)
    etag, modified = whole.headers["etag"], whole.headers["last-modified"]
    for headers, status in (
        ({"If-None-Match": etag}, 304),
        ({"If-None-Match": f'"x", W/{etag}'}, 304),
        ({"If-None-Match": "*"}, 304),
        ({"If-None-Match": '"x"'}, 200),
        ({"If-Modified-Since": modified}, 304),
        ({"If-Modified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"}, 200),
        ({"If-Modified-Since": "yesterday"}, 200),
        ({"If-None-Match": '"x"', "If-Modified-Since": modified}, 200),
        ({"Range": "bytes=0-9", "If-Range": etag}, 206),
        ({"Range": "bytes=0-9", "If-Range": modified}, 206),
        ({"Range": "bytes=0-9", "If-Range": f"W/{etag}"}, 200),
        ({"Range": "bytes=0-9", "If-Range": '"other"'}, 200),
        ({"Range": f"bytes={10**9}-", "If-Range": '"other"'}, 200),
    ):
        answer = await client.get(URL, headers=headers)
        assert answer.status_code == status, headers
        assert answer.headers["etag"] == etag


async def test_only_declared_files_and_only_as_declared(
    client: httpx.AsyncClient, batches: FakeDesk, tmp_path: Path
) -> None:
    for path in ("r/a/other.mp4", "r/a", "", "../secret", "%2e%2e/secret", "r/a/vision.mp4/"):
        answer = await client.get(f"/v1/artifacts/{path}")
        assert answer.status_code == 404, path
    assert (await client.get("/v1/artifacts/r/a/other.mp4")).json()["detail"] == "artifact not found"
    file = tmp_path / "vision.mp4"
    file.write_bytes(CONTENT + b"x")
    answer = await client.get(URL)
    assert answer.status_code == 500 and answer.json()["code"] == "integrity_mismatch"
    file.unlink()
    assert (await client.get(URL)).status_code == 404
    file.symlink_to(tmp_path / "empty.txt")
    assert (await client.get(URL)).status_code >= 400


async def test_a_slow_disk_holds_up_nobody_else_and_no_file_stays_open(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, real, reading = threading.Event(), os.pread, []

    def slow(descriptor: int, size: int, offset: int) -> bytes:
        assert threading.current_thread() is not threading.main_thread()
        reading.append(size)
        release.wait(10)
        return real(descriptor, size, offset)

    monkeypatch.setattr(artifacts.os, "pread", slow)
    before = len(list(Path("/proc/self/fd").iterdir()))
    downloads = [asyncio.create_task(client.get(URL)) for _ in range(8)]
    await until(lambda: len(reading) == artifacts.READERS)
    assert (await client.get("/health")).status_code == 200
    assert not any(d.done() for d in downloads)
    release.set()
    assert all(answer.content == CONTENT for answer in await asyncio.gather(*downloads))
    assert max(reading) <= artifacts.CHUNK_BYTES
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


async def test_a_file_that_shrinks_under_the_reader_breaks_the_answer_off(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts.os, "pread", lambda d, s, o: b"x" * 10 if o == 0 else b"")
    transport = httpx.ASGITransport(app=client._transport.app)  # type: ignore[attr-defined]
    async with httpx.AsyncClient(transport=transport, base_url="http://t", headers=client.headers) as strict:
        with pytest.raises(Exception, match="shorter"):
            await strict.get(URL)
