"""Asking a reasoner, over the real gateway and stub replicas; and the commands that do it."""

import asyncio
import itertools
import json
import socket
from pathlib import Path
from typing import Any

import av
import pytest
from support import clips
from support.gateway import OTHER_TOKEN, TOKEN, World, soon, video, world
from support.stub_replica import breaks, says

from cosmos3_serve.cli import main
from cosmos3_serve.errors import (
    ContractViolation,
    LimitExceeded,
    NotFound,
    QueueFull,
    ServiceFailure,
    Unauthorized,
    UsageError,
)
from cosmos3_serve.reasoner_client import ask, served, smoke
from cosmos3_serve.reasoner_client.ask import Reasoner, failure
from cosmos3_serve.reasoner_client.synthetic_video import make_video

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
    monkeypatch.setattr(smoke, "SECONDS", 2)
    async with world(tmp_path, replicas=1) as here:
        assert await command(here, "smoke", monkeypatch=monkeypatch) == 0
        said = capsys.readouterr()
        assert said.out.splitlines()[-1] == "Smoke test passed: r0 word word"
        assert "made a video of 2 s" in said.out + said.err


async def test_smoke_fails_on_an_empty_answer_and_on_an_unseen_video(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, asking(here) as reasoner:
        stub = here.replicas[0]
        stub._usage = lambda body: {"prompt_tokens": 12}  # type: ignore[method-assign, assignment, return-value]
        with pytest.raises(ContractViolation, match="did not see it"):
            await smoke.smoke(reasoner, seconds=2)
        stub._usage = lambda body: {"prompt_tokens": 12 + 30 * ("video_url" in json.dumps(body))}  # type: ignore[assignment, method-assign]
        assert (await smoke.smoke(reasoner, seconds=2))["video_tokens"] == 30
        stub.tokens = 0
        with pytest.raises(ContractViolation, match="empty"):
            await smoke.smoke(reasoner, seconds=2)


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
        assert await command(here, "sessions", "--json", "--key", found["session"], monkeypatch=monkeypatch) == 0
        assert json.loads(capsys.readouterr().out)["outcome"] == "hit"
        assert await command(here, "sessions", "--json", monkeypatch=monkeypatch) == 0
        listed = json.loads(capsys.readouterr().out)
        assert len(listed["data"]) == 2
        assert await command(here, "sessions", "--limit", "1", monkeypatch=monkeypatch) == 0
        first, more = capsys.readouterr().out.splitlines()
        assert first.split()[:2] == [listed["data"][0]["id"], listed["data"][0]["replica"]]
        assert await command(here, "sessions", *more.split()[-2:], monkeypatch=monkeypatch) == 0
        assert capsys.readouterr().out.split()[0] == listed["data"][1]["id"]
        assert await command(here, "sessions", "--key", found["session"], monkeypatch=monkeypatch) == 0
        assert capsys.readouterr().out.startswith("its next question: hit, replica-")
        assert await command(here, "ask", str(tmp_path / "no"), "x", "--json", monkeypatch=monkeypatch) == 2
        assert json.loads(capsys.readouterr().out)["code"] == "usage"


@pytest.mark.parametrize("command_", ["ask", "smoke", "sessions"])
@pytest.mark.parametrize(
    ("change", "exit_code", "code", "says_"),
    [
        ({"endpoint": "http://127.0.0.1:9"}, 4, "unreachable", "check --endpoint"),
        ({"endpoint": "127.0.0.1:9"}, 2, "invalid_endpoint", "COSMOS3_REASONER_ENDPOINT"),
        ({"token": ""}, 2, "no_token", "COSMOS3_REASONER_TOKEN"),
        ({"token": "another-token"}, 3, "invalid_api_key", "COSMOS3_REASONER_TOKEN"),
    ],
)
async def test_a_wrong_address_or_token_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    command_: str, change: dict[str, str], exit_code: int, code: str, says_: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(smoke, "SECONDS", 2)
    (tmp_path / "clip.mp4").write_bytes(video())
    words = {"ask": ["ask", str(tmp_path / "clip.mp4"), "What?"]}.get(command_, [command_])
    async with world(tmp_path, replicas=1) as here:
        monkeypatch.setenv("COSMOS3_REASONER_TOKEN", change.get("token", TOKEN))
        argv = ["reasoner", *words, "--endpoint", change.get("endpoint", here.url)]
        assert await asyncio.to_thread(main.run, main.build(), "cosmos3", argv) == exit_code
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.splitlines()[-3].startswith(f"cosmos3 reasoner {command_} failed: ")
        assert says_ in said.err
        assert f"code {code}, exit {exit_code}" in said.err


@pytest.mark.parametrize(
    ("words", "exit_code", "code"),
    [
        (["nothing.mp4", "What?"], 2, "usage"),
        ([".", "What?"], 2, "usage"),
        (["ftp://host/clip.mp4", "What?"], 2, "usage"),
        (["clip.mp4"], 2, "usage"),
        (["clip.mp4", " "], 2, "usage"),
        (["clip.mp4", "What?", "--max-tokens", "0"], 2, "usage"),
        (["clip.mp4", "What?", "--session", "a\nb"], 2, "usage"),
        (["clip.mp4", "What?", "--session", "x" * 257], 2, "invalid_session_key"),
        (["clip.mp4", "What?", "--model", "gpt-4"], 2, "model_not_found"),
        (["text.mp4", "What?"], 2, "media_not_media"),
        (["empty.mp4", "What?"], 2, "media_empty"),
        (["one.mp4", "What?"], 2, "media_too_few_frames"),
        (["picture.png", "What?"], 2, "media_type_mismatch"),
        (["http://127.0.0.1:9/clip.mp4", "What?"], 2, "media_url_refused"),
        (["s3://bucket/clip.mp4", "What?"], 2, "outside_s3_roots"),
        (["file-id:nothing", "What?"], 2, "file_not_found"),
    ],
)
async def test_what_cannot_be_asked_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: list[str], exit_code: int, code: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name, data in {
        "clip.mp4": video(), "text.mp4": b"no video at all", "empty.mp4": b"", "one.mp4": clips.clip(frames=1),
        "picture.png": clips.picture(),
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(data)
    async with world(tmp_path, replicas=1) as here:
        assert await command(here, "ask", *words, "--json", monkeypatch=monkeypatch) == exit_code
        said = capsys.readouterr()
        found = json.loads(said.out)
        assert (found["code"], found["exit_code"]) == (code, exit_code)
        assert "Traceback" not in said.err
        assert "NPA_COSMOS3_RAY" not in said.err
        assert said.err.startswith("cosmos3 reasoner ask failed: ")
        assert here.replicas[0].asked == []


async def test_a_fleet_that_is_not_ready_is_waited_for_aloud_and_then_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ask, "retry_after", lambda headers: 0.05)
    async with world(tmp_path, replicas=1) as here:
        await here.core.leave(here.places.pop("r0"))
        await soon(lambda: not here.front.ready_members())
        (tmp_path / "clip.mp4").write_bytes(video())
        assert await command(here, "ask", str(tmp_path / "clip.mp4"), "What?", monkeypatch=monkeypatch) == 3
        said = capsys.readouterr().err
        assert said.count("asking again in") == ask.BUSY.attempts - 1
        assert "code no_replica, exit 3" in said
        here.fleet.away = True
        assert await command(here, "sessions", monkeypatch=monkeypatch) == 3
        assert "code session_table_away, exit 3" in capsys.readouterr().err


async def test_an_address_as_openai_s_clients_are_given_works_too(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, Reasoner(f"{here.url}/v1/", environ=ENV) as asked:
        assert (await asked.ask("What?", session="süß")).facts["x-cosmos3-session"] == "new"
        assert (await asked.ask("What?", session="süß")).facts["x-cosmos3-session"] == "hit"


async def test_a_service_of_this_machine_is_not_asked_of_a_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with world(tmp_path, replicas=1) as here, Reasoner(here.url, environ=ENV) as asked:
        assert (await asked.ask("What?")).text


async def test_a_server_that_is_no_reasoner_is_named_as_such(tmp_path: Path) -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(page, "127.0.0.1", 0)
    async with server, Reasoner(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", environ=ENV) as asked:
        for call in (asked.ask("What?"), asked.get("/v1/sessions")):
            with pytest.raises(ContractViolation, match=r"127\.0\.0\.1") as found:
                await call
            assert "is a reasoner there" in found.value.remedy


async def test_smoke_lets_the_service_fetch_the_video(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = ["--video-port", str(port), "--video-public-url", f"http://127.0.0.1:{port}/"]
    monkeypatch.setattr(served, "PAUSE_S", 0)
    async with world(tmp_path, replicas=1, media_allow=(f"127.0.0.1:{port}",)) as here:
        assert await command(here, "smoke", *where, monkeypatch=monkeypatch) == 0
        assert capsys.readouterr().out.startswith("Smoke test passed: ")
        assert here.replicas[0].encoded  # the bytes came to a replica
    async with world(tmp_path, replicas=1) as here:  # which may not fetch from there
        assert await command(here, "smoke", *where, monkeypatch=monkeypatch) == 2
    assert "Smoke test passed" not in capsys.readouterr().out
