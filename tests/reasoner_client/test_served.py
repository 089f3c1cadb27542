"""A URL of our own is believed only once it leads to what is served."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from cosmos3_serve.bench.media_server import serve_file
from cosmos3_serve.errors import ServiceFailure
from cosmos3_serve.reasoner_client import served
from cosmos3_serve.reasoner_client.served import until_served


async def test_it_answers(tmp_path: Path) -> None:
    clip = tmp_path / "video-00000.mp4"
    clip.write_bytes(b"x" * 7)
    with serve_file(clip) as url:
        await until_served(f"{url}/{clip.name}", 7, attempts=1)
        for wrong, size in ((f"{url}/{clip.name}", 8), (f"{url}/other.mp4", 7)):
            with pytest.raises(ServiceFailure) as refused:
                await until_served(wrong, size, attempts=2, pause_s=0)
            assert refused.value.stable_code == "video_not_served"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x", "http://", "no url", "ftp://127.0.0.1/x"])
async def test_an_address_that_leads_nowhere(url: str) -> None:
    with pytest.raises(ServiceFailure) as refused:
        await until_served(url, 1, attempts=2, pause_s=0)
    assert refused.value.stable_code == "video_not_served"


async def test_it_waits_for_a_service_that_comes_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = tmp_path / "video-00000.mp4"
    clip.write_bytes(b"x")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    waited: list[float] = []
    with ExitStack() as stack:

        async def sleep(seconds: float) -> None:
            waited.append(seconds)
            if len(waited) == 2:
                stack.enter_context(serve_file(clip, port=port))

        monkeypatch.setattr(served.asyncio, "sleep", sleep)
        await until_served(f"http://127.0.0.1:{port}/{clip.name}", 1, attempts=5, pause_s=2.0)
    assert waited == [2.0, 2.0]
