"""Asking a reasoner, over the real gateway and stub replicas; and the commands that do it."""

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import av
import pytest
from support.gateway import OTHER_TOKEN, TOKEN, World, soon, video, world
from support.stub_replica import breaks, says

from cosmos3_serve.cli import main
from cosmos3_serve.client import reasoner_smoke
from cosmos3_serve.client.reasoner import Reasoner, failure
from cosmos3_serve.client.synthetic_video import make_video
from cosmos3_serve.errors import (
    ContractViolation,
    LimitExceeded,
    NotFound,
    QueueFull,
    ServiceFailure,
    Unauthorized,
    UsageError,
)

ENV = {"COSMOS3_REASONER_TOKEN": TOKEN}


def asking(here: World, **environ: str) -> Reasoner:
    return Reasoner(here.url, environ={**ENV, **environ})


async def command(here: World, *words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COSMOS3_REASONER_TOKEN", TOKEN)
    argv = ["reasoner", *words, "--endpoint", here.url]
    return await asyncio.to_thread(main.run, main.build(), "cosmos3", argv)


async def test_an_answer_comes_in_pieces_with_its_facts(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(video())
    async with world(tmp_path, replicas=1) as here, asking(here) as reasoner:
        url = await reasoner.video_url(str(path))
        assert url.startswith("file-id:")
        pieces: list[str] = []
        answer = await reasoner.ask("What?", url, session="s", max_tokens=5, on_text=pieces.append)
        assert answer.text == "".join(pieces) == "r0 word word "
        assert answer.finish_reason == "stop"
        assert answer.video_tokens == 40
        assert answer.facts["x-cosmos3-session"] == "new"
        (body,) = here.replicas[0].asked
        assert body["max_completion_tokens"] == 5
        assert (await reasoner.ask("And?", url, session="s")).facts["x-cosmos3-session"] == "hit"


async def test_refusals_are_typed(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here:
        async with asking(here, COSMOS3_REASONER_TOKEN="wrong-token") as stranger:
            with pytest.raises(Unauthorized):
                await stranger.ask("x")
        async with asking(here) as reasoner, asking(here, COSMOS3_REASONER_TOKEN=OTHER_TOKEN) as other:
            path = tmp_path / "clip.mp4"
            path.write_bytes(video())
            url = await reasoner.video_url(str(path))
            with pytest.raises(NotFound) as missing:
                await other.ask("x", url)
            assert missing.value.stable_code == "file_not_found"
            assert missing.value.errors[0].field == "messages[0].content[0]"
            with pytest.raises(UsageError):
                await reasoner.video_url(str(tmp_path / "nothing.mp4"))
            here.replicas[0].turns += [breaks(None)]
            with pytest.raises(ServiceFailure, match="broke off"):
                await reasoner.ask("x")


async def test_a_full_service_is_asked_again(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1, slots=1, queue_limit=0) as here, asking(here) as reasoner:
        here.replicas[0].gate.clear()
        first = asyncio.create_task(reasoner.ask("one"))
        await here.replicas[0].until(lambda: here.replicas[0].running == 1)
        second = asyncio.create_task(reasoner.ask("two"))
        await soon(lambda: here.front.line.refused == 1)
        here.replicas[0].gate.set()
        assert [(await task).text for task in (first, second)] == ["r0 word word "] * 2


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (429, b'{"error": {"message": "m", "code": "queue_full"}}', QueueFull, "queue_full"),
        (413, b'{"error": {"message": "m", "code": "body_too_large"}}', LimitExceeded, "body_too_large"),
        (502, b"<html>bad gateway</html>", ServiceFailure, "service_failed"),
    ],
)
def test_foreign_refusals_are_understood(status: int, body: bytes, kind: type, code: str) -> None:
    found = failure(status, body, {"Retry-After": "7"})
    assert isinstance(found, kind)
    assert (found.stable_code, found.retry_after_s) == (code, 7.0)


# ---- smoke ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ffmpeg", ["", None])
def test_the_synthetic_video_is_what_was_asked_for(tmp_path: Path, ffmpeg: str | None) -> None:
    path = tmp_path / "v.mp4"
    made_by = make_video(path, seconds=4, fps=2, size=(320, 180), ffmpeg=ffmpeg)
    assert made_by in ("pyav", "ffmpeg") if ffmpeg is None else made_by == "pyav"
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]
    assert len(frames) == 8
    assert frames[0].shape == (180, 320)
    assert any((a != b).any() for a, b in itertools.pairwise(frames))


async def test_smoke_passes_with_the_description_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reasoner_smoke, "SECONDS", 2)
    async with world(tmp_path, replicas=1) as here:
        assert await command(here, "smoke", monkeypatch=monkeypatch) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "Smoke test passed: r0 word word"


async def test_smoke_fails_on_an_empty_answer_and_on_an_unseen_video(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, asking(here) as reasoner:
        stub = here.replicas[0]
        stub._usage = lambda body: {"prompt_tokens": 12}  # type: ignore[method-assign, assignment, return-value]
        with pytest.raises(ContractViolation, match="did not see it"):
            await reasoner_smoke.smoke(reasoner, seconds=2)
        stub._usage = lambda body: {"prompt_tokens": 12 + 30 * ("video_url" in json.dumps(body))}  # type: ignore[assignment, method-assign]
        assert (await reasoner_smoke.smoke(reasoner, seconds=2))["video_tokens"] == 30
        stub.tokens = 0
        with pytest.raises(ContractViolation, match="empty"):
            await reasoner_smoke.smoke(reasoner, seconds=2)


async def test_smoke_that_fails_says_so_with_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with world(tmp_path, replicas=1) as here:
        here.replicas[0].turns.append(says(500, "no"))
        assert await command(here, "smoke", monkeypatch=monkeypatch) == 4
        said = capsys.readouterr()
        assert "Smoke test passed" not in said.out
        assert "replica_failed" in said.err


# ---- ask and sessions -----------------------------------------------------------------------------------------------


async def test_ask_uploads_once_and_keeps_one_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(video())
    async with world(tmp_path) as here:
        words = ("ask", str(path), "What?", "Where?")
        assert await command(here, *words, monkeypatch=monkeypatch) == 0
        assert capsys.readouterr().out.count("word word ") == 2
        assert await command(here, *words, "--json", "--explain", monkeypatch=monkeypatch) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert [a["x-cosmos3-session"] for a in found["answers"]] == ["new", "hit"]
        assert found["answers"][0]["explain"]["media"][0]["sampling"]["indices"]
        assert sum(len(stub.encoded) for stub in here.replicas) <= 2
        assert await command(here, "sessions", "--key", found["session"], monkeypatch=monkeypatch) == 0
        assert json.loads(capsys.readouterr().out)["outcome"] == "hit"
        assert await command(here, "sessions", monkeypatch=monkeypatch) == 0
        assert len(json.loads(capsys.readouterr().out)["data"]) == 2
        assert await command(here, "ask", str(tmp_path / "no"), "x", "--json", monkeypatch=monkeypatch) == 2
        assert json.loads(capsys.readouterr().out)["code"] == "usage"
