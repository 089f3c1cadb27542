"""Whole runs against a double: a valid one has figures, every kind of invalid one has none."""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from support.bench_server import BenchServer, Faults, bench_server

from cosmos3_serve.bench import report, run_folder
from cosmos3_serve.bench.media_server import serve_videos
from cosmos3_serve.bench.proxy import Recorded
from cosmos3_serve.bench.reasoner import Known, Places, in_turns, prepare, run
from cosmos3_serve.bench.records import Profile, Run, Workload
from cosmos3_serve.bench.seen import SLACK_TOKENS
from cosmos3_serve.bench.videos import Recipe, VideoSet, make_videos
from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.reasoner_client.ask import Reasoner

TOKEN = {"COSMOS3_REASONER_TOKEN": "bench-token"}


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    make_videos(folder, 8, Recipe(seconds=1, fps=2, width=32, height=32), workers=1)
    return folder


def work(profile: Profile = "session-affinity", **changed: object) -> Workload:
    fields = {"videos": 4, "questions": 3, "output_tokens": 5, "concurrency": (1, 2)} | changed
    return Workload.model_validate({"profile": profile, **fields})


async def records(server: BenchServer, workload: Workload, clips: Path) -> Run:
    with bench_server(server):
        async with Reasoner(server.url, environ=TOKEN) as reasoner:
            return await run(reasoner, "bench-token", workload, clips)


@pytest.mark.parametrize("transport", ["http", "data"])
async def test_a_valid_run_has_figures_and_can_be_read_back(clips: Path, tmp_path: Path, transport: str) -> None:
    found = await records(BenchServer(), work(transport=transport), clips)
    rows = report.write(found, tmp_path / "run")
    assert [(row.concurrency, row.requests, row.warm_start) for row in rows] == [(1, 12, False), (2, 12, True)]
    assert rows[0].media_misses == 4 and rows[0].requests_by_replica == [6, 6]
    assert rows[0].cached_share == pytest.approx(800 / 1440)
    assert len(rows[0].ttft_by_turn_ms) == 3
    assert report.read(tmp_path / "run") == found
    assert "weights: random" in (tmp_path / "run" / run_folder.PAGE).read_text()
    assert (tmp_path / "run" / run_folder.TABLE).read_text().count("\n") == 3
    with pytest.raises(Cosmos3Error) as refused:
        report.write(found, tmp_path / "run")
    assert refused.value.stable_code == "run_exists"


async def test_round_robin_sends_no_session_header(clips: Path) -> None:
    found = await records(BenchServer(profile="round-robin"), work("round-robin"), clips)
    assert {request.session for request in found.requests} == {None}
    assert report.check(found) == []


async def refused_codes(server: BenchServer, workload: Workload, clips: Path, output: Path) -> list[str]:
    """Names of the findings for which the report refuses a run; none where it has figures."""
    found = await records(server, workload, clips)
    try:
        report.write(found, output)
    except Cosmos3Error as refused:
        assert refused.stable_code == "run_invalid" and not (output / run_folder.TABLE).exists()
        return [error.field for error in refused.errors]
    return []


@pytest.mark.parametrize("profile", ["session-affinity", "round-robin"])
async def test_a_stream_that_is_buffered_on_its_way_leaves_no_figure(
    clips: Path, tmp_path: Path, profile: Profile
) -> None:
    workload = work(profile, output_tokens=8, videos=2, concurrency=(1,))
    assert await refused_codes(BenchServer(profile, pace_s=0.004), workload, clips, tmp_path / "streams") == []
    buffers = BenchServer(profile, pace_s=0.004, buffers=True)
    assert await refused_codes(buffers, workload, clips, tmp_path / "buffers") == ["stream_buffered"]


async def test_more_questions_in_flight_than_videos_are_refused_before_the_first(clips: Path) -> None:
    server = BenchServer()
    with pytest.raises(Cosmos3Error, match="concurrency of 5, 16") as refused:
        await records(server, work(concurrency=(1, 4, 5, 16)), clips)
    assert (refused.value.stable_code, refused.value.exit_code) == ("concurrency_unreached", 2) and server.asked == 0


class StickyByVideo(BenchServer):
    """A foreign server that sends each video to one replica, and says nothing of it."""

    def _home(self, session: str | None, video: str) -> tuple[int, str]:
        return len(video) % self.replicas, "none"


async def test_a_foreign_sticky_server_cannot_pass_for_round_robin(clips: Path, tmp_path: Path) -> None:
    found = await foreign(StickyByVideo(foreign=True), work("round-robin"), clips, Known())
    assert "round_robin_unproved" in [finding.code for finding in report.check(found)]
    found = await foreign(StickyByVideo(foreign=True), work("round-robin"), clips, Known(replicas=1))
    assert (found.replicas, found.fleet_by, report.check(found)) == (1, "caller", [])
    assert "1 replica(s) (the caller says)" in report.markdown(found, report.write(found, tmp_path))
    mixed = await foreign(BenchServer(profile="round-robin", foreign=True), work("round-robin"), clips, Known())
    assert report.check(mixed) == [], "cold questions tell of the second replica"


async def test_a_fleet_that_shrinks_leaves_no_figure(clips: Path, tmp_path: Path) -> None:
    assert await refused_codes(BenchServer(shrinks_after=20), work(), clips, tmp_path) == ["fleet_changed"]


async def test_another_number_of_replicas_than_the_server_says_is_refused(clips: Path) -> None:
    server = BenchServer()
    with pytest.raises(Cosmos3Error, match="2 replicas serve, not 3") as refused:
        await foreign(server, work(), clips, Known(replicas=3))
    assert refused.value.stable_code == "replicas_contradicted" and server.asked == 0


async def test_a_client_whose_loop_is_busy_leaves_no_figure(clips: Path, tmp_path: Path) -> None:
    server, workload = BenchServer(), work(videos=2, questions=10, concurrency=(2,))
    with bench_server(server):
        async with Reasoner(server.url, environ=TOKEN) as reasoner:
            # Whoever is told of the progress holds the loop: that one session's answer waits, and the other's question.
            found = await run(reasoner, "", workload, clips, progress=lambda *told: time.sleep(0.05))
    with pytest.raises(Cosmos3Error) as refused:
        report.write(found, tmp_path)
    assert "client_slow" in [error.field for error in refused.value.errors]


INVALID = {
    "refuse": ("request_failed", "session-affinity"),
    "cut": ("request_failed", "session-affinity"),
    "event": ("request_failed", "session-affinity"),
    "short": ("output_length", "round-robin"),
    "blind": ("video_not_seen", "session-affinity"),
    "scatter": ("session_scattered", "session-affinity"),
    "forget": ("warm_is_cold", "session-affinity"),
}


@pytest.mark.parametrize("fault", INVALID)
async def test_a_server_that_misbehaves_leaves_no_figure(clips: Path, tmp_path: Path, fault: str) -> None:
    code, profile = INVALID[fault]
    server = BenchServer(profile=profile, faults=Faults(fault, every=5))
    found = await records(server, work(profile), clips)  # type: ignore[arg-type]
    with pytest.raises(Cosmos3Error) as refused:
        report.write(found, tmp_path)
    assert (refused.value.stable_code, refused.value.exit_code) == ("run_invalid", 3)
    assert code in [error.field for error in refused.value.errors]
    assert not (tmp_path / run_folder.TABLE).exists() and not (tmp_path / run_folder.PAGE).exists()
    head = json.loads((tmp_path / run_folder.RUN).read_text())
    assert head["valid"] is False and "levels" not in head
    assert len((tmp_path / report.RECORDS).read_text().splitlines()) == 24, "the records are kept"
    with pytest.raises(Cosmos3Error):
        report.read(tmp_path)


async def test_a_server_that_listens_to_another_header_is_found_out(clips: Path, tmp_path: Path) -> None:
    found = await records(BenchServer(header="x-correlation-id"), work(), clips)
    assert "session_header_unproved" in [finding.code for finding in report.check(found)]


async def test_a_server_with_affinity_on_cannot_pass_for_round_robin(clips: Path) -> None:
    class Sticky(BenchServer):
        def _home(self, session: str | None, video: str) -> tuple[int, str]:
            return 0, "hit"

    found = await records(Sticky(profile="round-robin"), work("round-robin"), clips)
    assert "affinity_on" in [finding.code for finding in report.check(found)]


async def test_strict_levels_need_and_get_fresh_videos(clips: Path) -> None:
    found = await records(BenchServer(), work(fresh=True), clips)
    by_level = [{r.video for r in found.requests if r.concurrency == level} for level in (1, 2)]
    assert len(by_level[0]) == len(by_level[1]) == 4 and not by_level[0] & by_level[1]
    assert report.check(found) == []
    with pytest.raises(Cosmos3Error) as refused:
        await records(BenchServer(), work(fresh=True, repeats=2), clips)
    assert refused.value.stable_code == "videos_too_few"


async def test_videos_that_the_server_knows_already_are_not_cold(clips: Path) -> None:
    server = BenchServer()
    listing = VideoSet.read(clips)
    with serve_videos(clips, listing) as base:
        for replica in range(2):
            server.held[replica] |= {f"{base}/{video.name}" for video in listing.videos}
        with bench_server(server):
            async with Reasoner(server.url, environ=TOKEN) as reasoner:
                found = await run(reasoner, "", work(), clips, places=Places(base_url=base))
    assert "cold_is_warm" in [finding.code for finding in report.check(found)]


FOREIGN = Known(server="Dynamo's double", weights="random", worker_ids=True)


async def foreign(server: BenchServer, workload: Workload, clips: Path, known: Known = FOREIGN) -> Run:
    with bench_server(server):
        async with Reasoner(server.url, environ=TOKEN) as reasoner:
            return await run(reasoner, "", workload, clips, known=known)


@pytest.mark.parametrize("profile", ["session-affinity", "round-robin"])
async def test_a_server_that_speaks_as_dynamo_does_is_measured(clips: Path, tmp_path: Path, profile: Profile) -> None:
    found = await foreign(BenchServer(profile=profile, foreign=True), work(profile), clips)
    rows = report.write(found, tmp_path / "run")
    assert (found.server, found.weights) == ("Dynamo's double", "random")
    assert sorted(rows[0].requests_by_replica) == [6, 6], "by the workers' own ids"
    assert {request.video_tokens for request in found.requests} == {100 - SLACK_TOKENS}
    assert {request.session_state for request in found.requests} == {None}


async def test_a_foreign_server_that_saw_no_video_is_found_out(clips: Path) -> None:
    found = await foreign(BenchServer(foreign=True, faults=Faults("blind", every=5)), work(), clips)
    assert "video_not_seen" in [finding.code for finding in report.check(found)]


async def test_a_foreign_server_that_scatters_sessions_is_found_out_by_its_workers(clips: Path) -> None:
    server = BenchServer(foreign=True, header="x-correlation-id")
    found = await foreign(server, work(), clips)
    assert "session_scattered" in [finding.code for finding in report.check(found)]


async def test_a_header_that_does_not_go_out_is_not_proved(clips: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def deaf(upstream: str) -> Iterator[tuple[str, Recorded]]:
        yield upstream, Recorded()

    monkeypatch.setattr("cosmos3_serve.bench.load.recording_proxy", deaf)
    found = await foreign(BenchServer(foreign=True), work(), clips)
    assert "session_header_unproved" in [finding.code for finding in report.check(found)]


async def test_targets_take_turns_and_another_one_begins_each_repeat(clips: Path, tmp_path: Path) -> None:
    order: list[tuple[str, str]] = []
    workload = work(videos=2, concurrency=(2,), repeats=2, fresh=True)
    ours, theirs = BenchServer(), BenchServer(foreign=True)
    with bench_server(ours), bench_server(theirs):
        async with (
            Reasoner(ours.url, environ=TOKEN) as one,
            Reasoner(theirs.url, environ=TOKEN) as other,
            prepare(one, "", workload, clips) as a,
            prepare(other, "", workload, clips, known=FOREIGN) as b,
        ):
            for name, target in (("a", a), ("b", b)):
                level = target.level
                target.level = (  # type: ignore[method-assign]
                    lambda c, r, *tell, name=name, level=level: (
                        order.append((name, f"repeat {r}")),
                        level(c, r, *tell),
                    )[1]
                )
            await in_turns([a, b])
    assert order == [("a", "repeat 0"), ("b", "repeat 0"), ("b", "repeat 1"), ("a", "repeat 1")]
    for target in (a, b):
        asked = [{r.video[8:11] for r in target.run().requests if r.repeat == repeat} for repeat in range(2)]
        assert asked == [{"000", "001"}, {"002", "003"}], "both are asked the same, and each repeat has fresh clips"
        assert report.check(target.run()) == [] and len(target.run().requests) == 2 * 2 * 3


@pytest.fixture
def own_clips(clips: Path, tmp_path: Path) -> Path:
    shutil.copytree(clips, tmp_path / "own")
    return tmp_path / "own"


@pytest.mark.parametrize("transport", ["http", "data"])
@pytest.mark.parametrize("same_size", [True, False])
async def test_clips_that_changed_since_they_were_listed_are_refused(
    own_clips: Path, transport: str, same_size: bool
) -> None:
    clip, other = (own_clips / f"video-0000{n}.mp4" for n in (1, 2))
    whole = clip.read_bytes()
    clip.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if same_size else other.read_bytes())
    server = BenchServer()
    with pytest.raises(Cosmos3Error, match=r"video-00001\.mp4") as refused:
        await records(server, work(videos=3, transport=transport), own_clips)
    assert refused.value.stable_code == "video_changed" and server.asked == 0
    clip.unlink()
    with pytest.raises(Cosmos3Error, match="cannot be read"):
        await records(server, work(videos=3, transport=transport), own_clips)


async def test_clips_that_another_server_has_otherwise_are_refused(own_clips: Path, tmp_path: Path) -> None:
    make_videos(tmp_path / "others", 2, Recipe(seconds=1, fps=2, width=48, height=32), workers=1)
    there = VideoSet.read(tmp_path / "others")
    server = BenchServer()
    with serve_videos(tmp_path / "others", there) as base, bench_server(server):
        async with Reasoner(server.url, environ=TOKEN) as reasoner:
            for videos, code in ((2, "video_changed"), (3, "video_changed")):
                with pytest.raises(Cosmos3Error) as refused:
                    await run(reasoner, "", work(videos=videos), own_clips, places=Places(base_url=base))
                assert refused.value.stable_code == code
    with bench_server(server):
        async with Reasoner(server.url, environ=TOKEN) as reasoner:
            for url in ("http://127.0.0.1:9", "nowhere", "http://[::1"):
                with pytest.raises(Cosmos3Error) as refused:
                    await run(reasoner, "", work(videos=3), own_clips, places=Places(base_url=url))
                assert refused.value.stable_code == "unreachable"
    assert server.asked == 0


async def test_weights_that_a_server_does_not_tell_are_the_callers_statement(clips: Path) -> None:
    for said, known, found in (
        (True, None, ("unknown", "server")),
        (True, "pretrained", ("pretrained", "caller")),
        (False, "random", ("random", "server")),
    ):
        ran = await foreign(
            BenchServer(foreign=said), work(videos=1, questions=1, concurrency=(1,)), clips, Known(weights=known)
        )  # type: ignore[arg-type]
        assert (ran.weights, ran.weights_by) == found
    server = BenchServer()
    with pytest.raises(Cosmos3Error) as refused:
        await foreign(server, work(), clips, Known(weights="pretrained"))
    assert refused.value.stable_code == "weights_contradicted" and server.asked == 0


async def test_another_model_is_refused_before_the_first_question(clips: Path) -> None:
    server = BenchServer()
    with bench_server(server):
        async with Reasoner(server.url, environ=TOKEN, model="other") as reasoner:
            with pytest.raises(Cosmos3Error) as refused:
                await run(reasoner, "", work(), clips)
    assert refused.value.stable_code == "model_not_served" and server.asked == 0


def test_the_media_server_serves_the_listed_clips_only(clips: Path) -> None:
    listing = VideoSet.read(clips)
    whole = (clips / listing.videos[0].name).read_bytes()
    with serve_videos(clips, listing) as base:
        name = listing.videos[0].name
        assert httpx.get(f"{base}/{name}").content == whole
        part = httpx.get(f"{base}/{name}", headers={"Range": "bytes=10-19"})
        assert (part.status_code, part.content) == (206, whole[10:20])
        assert part.headers["content-range"] == f"bytes 10-19/{len(whole)}"
        assert httpx.get(f"{base}/{name}", headers={"Range": f"bytes={len(whole)}-"}).status_code == 416
        for path in ("videos.json", "../videos.json", "..%2fvideos.json", "", "video-99999.mp4"):
            assert httpx.get(f"{base}/{path}").status_code == 404
