"""`cosmos3 bench …` as a user runs it: results on stdout, an invalid run ends with exit code 3 and no figure."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from support.bench_server import BenchServer, Faults, bench_server

from cosmos3_serve.bench import plots
from cosmos3_serve.cli import main
from cosmos3_serve.cli.bench import _show_level
from cosmos3_serve.reasoner_client.served import until_served

WORK = ["--load", "own", "--videos", "3", "--questions", "2", "--output-tokens", "4", "--concurrency", "1,2"]

ONE = ["--videos", "1", "--concurrency", "1"]


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    argv = ["bench", "videos", "--videos-dir", str(folder), "--count", "3", "--seconds", "1", "--size", "32x32"]
    assert main.run(main.build(), "cosmos3", [*argv, "--workers", "1"]) == 0
    return folder


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSMOS3_REASONER_TOKEN", "bench-token")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pictures, for tests of something else: to draw those of a run takes a second of CPU."""
    monkeypatch.setattr(plots, "draw", lambda runs, directory: [])


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main.run(main.build(), "cosmos3", ["bench", *argv, "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out)


def measure(clips: Path, output: Path, profile: str, server: BenchServer, *more: str) -> list[str]:
    places = ["--videos-dir", str(clips), "--output", str(output), "--endpoint", server.url]
    return ["reasoner", "--profile", profile, *places, *WORK, *more]


def test_two_profiles_are_measured_and_compared(
    clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for profile in ("round-robin", "session-affinity"):
        with bench_server(BenchServer(profile=profile)) as server:
            code, found = run(capsys, *measure(clips, tmp_path / profile, profile, server))
        assert (code, found["valid"], len(found["levels"])) == (0, True, 2)
        names = {path.name for path in (tmp_path / profile).iterdir()}
        assert {"run.json", "requests.jsonl", "table.csv", "report.md", "report.html", "throughput.png"} <= names
        assert "bench-token" not in (tmp_path / profile / "run.json").read_text()
    runs = [str(tmp_path / "round-robin"), str(tmp_path / "session-affinity")]
    code, found = run(capsys, "compare", *runs, "--output", str(tmp_path / "both"))
    assert code == 0 and {gain["figure"] for gain in found["gains"]} >= {"requests/s", "TTFT p50 ms"}
    written = {path.name for path in (tmp_path / "both").iterdir()}
    assert {"comparison.json", "comparison.csv", "comparison.md", "report.html"} <= written
    page = (tmp_path / "both" / "report.html").read_text()
    assert "95 % interval" in page and "TTFT p50 ms" in page
    code, found = run(capsys, "plan", "--from", runs[1], "--run-workers", "2", "--workers", "8")
    assert code == 0 and len(found["checked"]) == 2 and len(found["predicted"]["round-robin"]) == 5


def test_an_invalid_run_prints_no_figure(clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bench_server(BenchServer(faults=Faults("short", every=3))) as server:
        code, found = run(capsys, *measure(clips, tmp_path / "r", "session-affinity", server))
    assert (code, found["code"]) == (3, "run_invalid")
    assert "requests_per_s" not in json.dumps(found)
    assert not (tmp_path / "r" / "table.csv").exists()
    code, found = run(capsys, "compare", str(tmp_path / "r"), str(tmp_path / "r"))
    assert (code, found["code"]) == (3, "run_invalid")


@pytest.mark.parametrize("option", [[], ["--session-header", "x-correlation-id"]])
def test_a_session_header_that_the_server_does_not_read_leaves_no_figure(
    clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    reads = "x-dynamo-session-id" if option else "x-correlation-id"
    with bench_server(BenchServer(header=reads)) as server:
        code, found = run(capsys, *measure(clips, tmp_path / "r", "session-affinity", server, *option))
    assert (code, found["code"]) == (3, "run_invalid")
    assert "session_header_unproved" in [error["field"] for error in found["errors"]]
    assert {path.name for path in (tmp_path / "r").iterdir()} == {"run.json", "requests.jsonl"}


def test_two_clips_of_one_content_are_no_run(clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listing = json.loads((clips / "videos.json").read_text())
    twice = [video | {"name": f"video-{n:05d}.mp4"} for n, video in enumerate([listing["videos"][0]] * 3)]
    (tmp_path / "v").mkdir()
    for video in twice:
        (tmp_path / "v" / video["name"]).write_bytes((clips / "video-00000.mp4").read_bytes())
    (tmp_path / "v" / "videos.json").write_text(json.dumps(listing | {"videos": twice}))
    with bench_server(BenchServer()) as server:
        code, found = run(capsys, *measure(tmp_path / "v", tmp_path / "r", "session-affinity", server))
    assert (code, found["code"], server.asked) == (4, "videos_duplicate", 0)
    assert not (tmp_path / "r").exists()


def test_what_aiperf_left_of_another_run_is_not_taken_over(
    clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r" / "aiperf-not-checked").mkdir(parents=True)
    with bench_server(BenchServer()) as server:
        code, found = run(capsys, *measure(clips, tmp_path / "r", "session-affinity", server))
    assert (code, found["code"], server.asked) == (2, "run_exists", 0)


@pytest.mark.usefixtures("undrawn")
def test_the_caller_says_the_weights_of_a_foreign_server(
    clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with bench_server(BenchServer(foreign=True)) as server:
        argv = measure(clips, tmp_path / "r", "session-affinity", server, "--weights", "random")
        assert run(capsys, *argv)[0] == 0
        code, found = run(capsys, *measure(clips, tmp_path / "s", "session-affinity", server, "--weights", "good"))
    assert (code, found["code"]) == (2, "usage")
    head = json.loads((tmp_path / "r" / "run.json").read_text())
    assert (head["weights"], head["weights_by"]) == ("random", "caller")


@pytest.mark.parametrize(
    ("more", "code", "name"),
    [
        (["--profile", "sticky"], 2, "usage"),
        (["--concurrency", "0"], 2, "usage"),
        (["--concurrency", "1,1"], 2, "usage"),
        (["--concurrency", "a"], 2, "usage"),
        (["--videos", "9"], 2, "videos_too_few"),
        (["--concurrency", "1,4"], 2, "concurrency_unreached"),
        (["--replicas", "3"], 2, "replicas_contradicted"),
        (["--videos-dir", "/dev/null"], 2, "invalid_input"),
        (["--model", "other"], 2, "model_not_served"),
        (["--token-env", "NOT_SET"], 2, "no_token"),
        (["--endpoint", "http://127.0.0.1:9"], 4, "unreachable"),
    ],
)
def test_bad_calls_are_named(
    clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: int, name: str
) -> None:
    with bench_server(BenchServer()) as server:
        found = run(capsys, *measure(clips, tmp_path / "r", "round-robin", server, *more))
    assert (found[0], found[1]["code"]) == (code, name)
    assert not (tmp_path / "r").exists()


@pytest.mark.usefixtures("undrawn")
def test_clips_are_made_in_a_codec_that_the_server_decodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["videos", "--videos-dir", str(tmp_path / "v"), "--count", "1", "--seconds", "1", "--size", "64x64"]
    with bench_server(BenchServer(decodes=("mpeg4",))) as server:
        code, found = run(capsys, *argv, "--workers", "1", "--endpoint", server.url)
        assert (code, found["recipe"]["codec"]) == (0, "mpeg4")
        code, found = run(capsys, *measure(tmp_path / "v", tmp_path / "r", "session-affinity", server), *ONE)
        assert (code, found["valid"]) == (0, True)
    with bench_server(BenchServer(decodes=("h264",))) as server:
        code, found = run(capsys, *measure(tmp_path / "v", tmp_path / "s", "session-affinity", server), *ONE)
        assert (code, found["code"]) == (2, "no_codec") and not (tmp_path / "s").exists()
        code, found = run(capsys, *argv, "--workers", "1", "--codec", "auto", "--endpoint", server.url)
        assert (code, found["code"]) == (2, "videos_other_recipe")


def test_clips_join_the_ones_that_are_there_as_those_were_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["videos", "--videos-dir", str(tmp_path / "v"), "--workers", "1", "--count"]
    first = [*folder, "1", "--seconds", "1", "--fps", "3", "--size", "64x32", "--codec", "mpeg4"]
    code, made = run(capsys, *first)
    assert code == 0
    code, found = run(capsys, *folder, "2")
    assert (code, found["recipe"]) == (0, made["recipe"]) and len(found["videos"]) == 2
    with bench_server(BenchServer(decodes=("h264", "mpeg4"))) as server:
        code, found = run(capsys, *folder, "3", "--endpoint", server.url)
        assert (code, found["recipe"]) == (0, made["recipe"])
    with bench_server(BenchServer(decodes=("h264",))) as server:
        assert run(capsys, *folder, "3", "--endpoint", server.url)[1]["code"] == "no_codec"
    for other in (["--fps", "2"], ["--size", "640x360"], ["--codec", "h264"], ["--seconds", "30"]):
        code, found = run(capsys, *folder, "3", *other)
        assert (code, found["code"]) == (2, "videos_other_recipe")


@pytest.mark.usefixtures("undrawn")
def test_a_run_without_clips_makes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bench_server(BenchServer(decodes=("mpeg4",))) as server:
        argv = measure(tmp_path / "made", tmp_path / "r", "session-affinity", server)
        code, found = run(capsys, *argv, *ONE)
    assert (code, found["valid"]) == (0, True)
    recipe = json.loads((tmp_path / "made" / "videos.json").read_text())["recipe"]
    assert (recipe["seconds"], recipe["fps"], recipe["width"], recipe["codec"]) == (30, 2, 640, "mpeg4")


def test_the_plan_without_a_run_is_set_against_the_published_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(capsys, "plan")
    assert code == 0 and len(found["checked"]) == 8 and found["predicted"] == {}
    assert "NVIDIA" in found["published"]["origin"] and len(found["published"]["rows"]) == 5


def test_the_plan_takes_costs_and_a_number_of_videos(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--cold-ms", "400", "--warm-ms", "30", "--itl-ms", "1:4.0,2:4.3", "--concurrency", "4,16"]
    code, found = run(capsys, "plan", *given, "--videos", "4")
    assert code == 0 and found["costs"]["itl_s"] == {"1": 0.004, "2": pytest.approx(0.0043)}
    four, sixteen = found["predicted"]["session-affinity"]
    assert four["requests_per_s"] == sixteen["requests_per_s"]
    assert run(capsys, "plan", *given[:4], "--itl-ms", "x")[1]["code"] == "usage"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.usefixtures("undrawn")
def test_clips_are_served_here_and_named_by_the_public_address(
    clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    public = f"http://localhost:{port}"
    more = ["--video-host", "127.0.0.1", "--video-port", str(port), "--video-public-url", public, "--level-summaries"]
    with bench_server(BenchServer(profile="round-robin")) as server:
        code, found = run(capsys, *measure(clips, tmp_path / "r", "round-robin", server, *more))
    assert (code, found["valid"]) == (0, True)
    held = set().union(*server.held.values())
    # The clip that tries the codec goes along as data.
    assert {url for url in held if url and not url.startswith("data:")} == {
        f"{public}/video-{number:05d}.mp4" for number in range(3)
    }


def test_a_public_address_that_leads_nowhere_ends_the_run_before_it_starts(
    clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(until_served, "__kwdefaults__", {"attempts": 2, "pause_s": 0.0})
    with bench_server(BenchServer(profile="round-robin")) as server:
        argv = measure(clips, tmp_path / "r", "round-robin", server, "--video-public-url", "http://127.0.0.1:9")
        code, found = run(capsys, *argv)
    assert (code, found["code"], server.asked) == (4, "video_not_served", 0)


def test_each_level_shows_the_load_generators_own_summary(capsys: pytest.CaptureFixture[str]) -> None:
    _show_level("concurrency 4", "Metric,avg\nTTFT,12\n")
    _show_level("concurrency 8", "")
    said = capsys.readouterr().err
    assert "concurrency 4: the load generator's own summary, not checked\nMetric,avg\nTTFT,12\n" in said
    assert "concurrency 8" in said and "wrote none" in said
