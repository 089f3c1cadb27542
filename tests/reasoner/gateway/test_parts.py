"""Bodies for replicas: exact sizes, a client's own base64 only where it is exact, files encoded while they are sent."""

import base64
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from support import clips
from support.gateway import about, data_url

from cosmos3_serve.errors import StorageFailure
from cosmos3_serve.reasoner.gateway import parts
from cosmos3_serve.reasoner.gateway.held_media import PartPlan
from cosmos3_serve.reasoner.gateway.parts import FilePiece, Payload, compose
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.item import MediaItem
from cosmos3_serve.reasoner.media.parts import DataSource
from cosmos3_serve.reasoner.media.sampling import VideoProcessor, sample_video


def item(path: Path, data: bytes, text: bytes | None = None) -> MediaItem:
    path.write_bytes(data)
    info = MediaInfo("video", "video/mp4", "mp4", "h264", "yuv420p", 160, 96, 8, 4.0, 2.0, len(data), replica_frames=8)
    source = None if text is None else DataSource("video/mp4", memoryview(text), True, True)
    return MediaItem(
        kind="video", where=(0, 0), sha256="0" * 64, mime="video/mp4", size=len(data), path=path, info=info,
        original=None, options={}, uuid="u" * 64, cost=sample_video(info, VideoProcessor(), {}), source=source,
    )  # fmt: skip


def body() -> dict[str, Any]:
    found = about("x", "words “ü”")
    found["messages"][0]["content"][0] = {"type": "video_url", "video_url": None}
    return found


async def sent(payload: Payload) -> dict[str, Any]:
    pieces = b"".join([piece async for piece in payload.slices()])
    assert len(pieces) == payload.size
    whole = payload.joined()
    assert whole is None or whole == pieces
    found: dict[str, Any] = json.loads(pieces)
    return found


async def test_a_part_goes_by_name_or_with_its_bytes(tmp_path: Path) -> None:
    data = clips.clip(frames=8)
    one = item(tmp_path / "v", data, base64.b64encode(data))
    shared = body()
    for with_data in (False, True, False):
        payload = compose(shared, [one], [PartPlan(one.uuid, with_data)])
        (part, words) = (await sent(payload))["messages"][0]["content"]
        assert part["uuid"] == one.uuid
        assert part["video_url"] == ({"url": data_url(data)} if with_data else None)
        assert words["text"] == "words “ü”"


@pytest.mark.parametrize("size", [1, 2, 3, 100, 101])
async def test_text_that_is_not_exact_base64_is_not_passed_on(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    exact = base64.b64encode(data)
    for text in (exact, exact.rstrip(b"="), exact[:2] + b" " + exact[2:], exact[:1] + b"\n" + exact[1:].rstrip(b"=")):
        one = item(tmp_path / "v", data, text)
        payload = compose(body(), [one], [PartPlan(one.uuid, True)])
        url = (await sent(payload))["messages"][0]["content"][0]["video_url"]["url"]
        assert url == data_url(data)


async def test_a_large_file_is_encoded_slice_by_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "FILE_SLICE", 3 * 1000)
    data = os.urandom(100_001)
    one = item(tmp_path / "v", data)
    payload = compose(body(), [one], [PartPlan(one.uuid, True)])
    assert payload.joined() is None
    slices = [piece async for piece in payload.slices()]
    assert max(map(len, slices)) <= 4000
    assert (await sent(payload))["messages"][0]["content"][0]["video_url"]["url"] == data_url(data)


async def test_a_file_that_shrank_or_went_is_a_failure_of_the_store(tmp_path: Path) -> None:
    one = item(tmp_path / "v", b"x" * 1000)
    for damage in (lambda: one.path.write_bytes(b"x" * 10), one.path.unlink):
        damage()
        with pytest.raises(StorageFailure) as failed:
            await sent(compose(body(), [one], [PartPlan(one.uuid, True)]))
        assert str(tmp_path) not in failed.value.detail


def test_no_text_of_a_client_stands_for_a_part(tmp_path: Path) -> None:
    one = item(tmp_path / "v", b"x" * 30)
    two = dataclasses.replace(one, where=(0, 1))
    shared = {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": None} for _ in range(2)]}]}
    payload = compose(shared, [one, two], [PartPlan("a", True), PartPlan("b", True)])
    assert sum(isinstance(piece, FilePiece) for piece in payload.pieces) == 2
