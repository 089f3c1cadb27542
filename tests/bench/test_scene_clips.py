"""Runs about scenes: their own questions, answers that end where they end, and the share that is right."""

from pathlib import Path
from typing import Any

import pytest
from support.bench_server import BenchServer, bench_server

from cosmos3_serve.bench import report, scene_clips
from cosmos3_serve.bench.reasoner import WithAIPerf, run
from cosmos3_serve.bench.records import Run, Workload
from cosmos3_serve.bench.validity import check
from cosmos3_serve.bench.videos import SCENES, Recipe, VideoSet, make_videos
from cosmos3_serve.blockworld import score
from cosmos3_serve.blockworld.asked import held_out
from cosmos3_serve.blockworld.files import decode
from cosmos3_serve.errors import InputError, UsageError
from cosmos3_serve.reasoner_client.ask import Reasoner

TOKEN = {"COSMOS3_REASONER_TOKEN": "bench-token"}


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    make_videos(folder, 4, SCENES, workers=1)
    return folder


def work(**changed: Any) -> Workload:
    fields = {"videos": 4, "questions": 4, "output_tokens": 40, "concurrency": (1, 2), **changed}
    return Workload.model_validate({"profile": "session-affinity", **fields})


def right(url: str, question: str, off: int = 0) -> str:
    """What is right of a clip that is named in its URL, or of the one `off` places behind it."""
    if url.startswith("data:"):
        return "a clip"  # asked before the run: whether its codec is decoded
    asked = scene_clips.turns(url.rpartition("/")[2])
    turn = next(n for n, turn in enumerate(asked) if turn.question == question)
    number = (int(url.rpartition("video-")[2][:5]) + off) % 4
    return scene_clips.turns(f"video-{number:05d}.mp4")[turn].answer


async def records(server: BenchServer, workload: Workload, clips: Path, aiperf: WithAIPerf | None = None) -> Run:
    with bench_server(server):
        async with Reasoner(server.url, environ=TOKEN) as reasoner:
            return await run(reasoner, "bench-token", workload, clips, aiperf=aiperf)


def test_a_clip_shows_its_scene_and_every_scene_has_enough_questions(clips: Path) -> None:
    for number, video in enumerate(VideoSet.read(clips).videos):
        frames = decode(clips / video.name)
        assert frames.shape == (9, 192, 320, 3)
        assert score.clip_shows(held_out(number, moving=True).scene, frames)
    for number in range(200):
        turns = scene_clips.turns(f"video-{number:05d}.mp4")
        assert len(turns) == scene_clips.MAX_TURNS and turns[0].kind == "happens"
        assert len({turn.question for turn in turns}) == len(turns)


async def test_right_answers_are_told_as_a_share(clips: Path, tmp_path: Path) -> None:
    found = await records(BenchServer(says=right), work(), clips)
    rows = report.write(found, tmp_path / "run")
    assert [row.right for row in rows] == [1.0, 1.0]
    assert "concurrency 2, repeat 1: 100.0%" in (tmp_path / "run" / "report.md").read_text()
    assert report.read(tmp_path / "run") == found
    assert len({request.output_tokens for request in found.requests}) > 1, "answers end where they end"


async def test_answers_about_another_clip_are_wrong(clips: Path, tmp_path: Path) -> None:
    server = BenchServer(says=lambda url, question: right(url, question, off=1))
    found = await records(server, work(questions=1), clips)
    assert max(row.right or 0.0 for row in report.write(found, tmp_path / "run")) < 0.5


async def test_an_answer_that_is_too_long_is_found(clips: Path) -> None:
    found = await records(BenchServer(says=lambda url, question: "word " * 41), work(), clips)
    assert {finding.code for finding in check(found)} == {"output_length"}


async def test_scenes_need_our_own_load_and_have_so_many_questions(clips: Path, tmp_path: Path) -> None:
    server = BenchServer()
    with pytest.raises(UsageError, match="AIPerf"):
        await records(server, work(), clips, WithAIPerf(tmp_path / "aiperf", "", tmp_path))
    with pytest.raises(UsageError, match="8 questions"):
        await records(server, work(questions=9), clips)
    assert server.asked == 0


def test_clips_of_scenes_and_of_shapes_do_not_mix(clips: Path) -> None:
    with pytest.raises(InputError) as refused:
        make_videos(clips, 4, SCENES.model_copy(update={"content": "shapes"}), workers=1)
    assert refused.value.stable_code == "videos_other_recipe"
    assert Recipe().content == "shapes"
