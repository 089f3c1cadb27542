"""AIPerf: what is handed to it and what is made of its records; the program itself where it is installed."""

import json
import os
import sys
from pathlib import Path

import httpx
import pytest
from support.bench_server import MODEL, BenchServer, bench_server

from cosmos3_serve.bench import aiperf, report
from cosmos3_serve.bench.proxy import recording_proxy
from cosmos3_serve.bench.reasoner import WithAIPerf, run
from cosmos3_serve.bench.records import Workload
from cosmos3_serve.bench.seen import SLACK_TOKENS
from cosmos3_serve.bench.validity import check
from cosmos3_serve.bench.videos import Recipe, make_videos
from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.reasoner_client.ask import Reasoner

WORK = Workload(profile="session-affinity", videos=2, questions=2, output_tokens=4, concurrency=(1,))
DIRECTORY = os.environ.get("COSMOS3_AIPERF_DIR", "")
TOKENIZER = os.environ.get("COSMOS3_AIPERF_TOKENIZER", "")


def line(video: int, turn: int, **changed: object) -> str:
    """A line as AIPerf 0.13.0 exports it, less the metrics that are not read."""
    start = 1_795_998_584_810_519_841 + (video * 2 + turn) * 10**9
    entry = {
        "metadata": {
            "x_correlation_id": f"id-{video}", "conversation_id": f"video-{video:05d}.mp4", "turn_index": turn,
            "request_start_ns": start, "request_end_ns": start + 600_000_000, "benchmark_phase": "profiling",
        },
        "metrics": {
            "usage_prompt_tokens": {"value": 140, "unit": "tokens"},
            "usage_completion_tokens": {"value": 4, "unit": "tokens"},
            "usage_prompt_cache_read_tokens": {"value": 100 if turn else 0, "unit": "tokens"},
            "time_to_first_token": {"value": 200.0, "unit": "ms"},
            "request_latency": {"value": 500.0, "unit": "ms"},
        },
    }  # fmt: skip
    return json.dumps(entry | changed)


def read(*lines: str, headers: tuple[str, ...] = ("x-correlation-id", "x-dynamo-session-id")) -> list[aiperf.Request]:
    return aiperf.records(lines, WORK, concurrency=1, repeat=0, headers=headers, text_tokens=20)


def test_a_record_keeps_times_tokens_and_session() -> None:
    found = read(line(1, 1))[0]
    assert (found.video, found.turn, found.session, found.status) == ("video-00001.mp4", 1, "id-1", 200)
    assert found.ttft == pytest.approx(0.2, abs=1e-5) and found.latency == pytest.approx(0.5, abs=1e-5)
    assert found.itl == pytest.approx(0.1, abs=1e-5)
    assert (found.prompt_tokens, found.output_tokens, found.cached_tokens) == (140, 4, 100)
    assert found.video_tokens == 140 - 20 - SLACK_TOKENS
    assert found.header_seen is True


def test_a_header_that_no_proxy_saw_is_not_proved() -> None:
    assert read(line(0, 0), headers=("x-correlation-id",))[0].header_seen is False


def test_a_failed_request_is_a_record() -> None:
    found = read(line(0, 0, metrics={}, error={"type": "Timeout", "message": "too late"}))[0]
    assert found.error == "Timeout: too late" and found.first is None


def test_the_questions_of_a_session_stand_in_order(tmp_path: Path) -> None:
    aiperf.write_dataset(tmp_path / "q.jsonl", {"a.mp4": "http://x/a.mp4", "text": ""}, 2, 4)
    lines = [json.loads(text) for text in (tmp_path / "q.jsonl").read_text().splitlines()]
    assert [entry["session_id"] for entry in lines] == ["a.mp4", "a.mp4", "text", "text"]
    assert lines[0]["text"] != lines[1]["text"] and lines[0]["text"] == lines[2]["text"]
    assert lines[0]["video"] == "http://x/a.mp4" and "video" not in lines[2]


def test_the_environment_sends_the_header_for_affinity_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(aiperf.SESSION_VARIABLE, "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert aiperf.environment(WORK)[aiperf.SESSION_VARIABLE] == "1"
    robin = aiperf.environment(WORK.model_copy(update={"profile": "round-robin"}))
    assert aiperf.SESSION_VARIABLE not in robin and "HF_HUB_OFFLINE" not in robin
    with pytest.raises(Cosmos3Error):
        aiperf.environment(WORK.model_copy(update={"session_header": "x-other"}))


def test_what_is_not_installed_is_said(tmp_path: Path) -> None:
    with pytest.raises(Cosmos3Error) as refused:
        aiperf.find(tmp_path, "t")
    assert refused.value.stable_code == "no_aiperf"
    with pytest.raises(Cosmos3Error) as failed:
        aiperf.set_up(tmp_path / "new", python=str(tmp_path / "no-python"))
    assert failed.value.stable_code == "aiperf_not_installed"


FAKE = """#!/bin/sh
# A double of AIPerf: its version, one record a question, its table; a question to the server where one is named.
if [ "$1" = --version ]; then echo "${VERSION:-0.13.0}"; exit 0; fi
for word in "$@"; do
  case "$before" in --output-artifact-dir) folder="$word";; --url) url="$word";; esac
  before="$word"
done
if [ -n "$ASK" ]; then
  "$ASK" -c "
import sys, urllib.request as u
body = b'{\\"messages\\": [{\\"content\\": \\"words\\"}], \\"max_completion_tokens\\": 1}'
head = {'X-Correlation-ID': 'c'} | ({'X-Dynamo-Session-ID': 'c'} if len(sys.argv) > 2 else {})
u.urlopen(u.Request(sys.argv[1] + '/v1/chat/completions', body, head)).read()
" "$url" $AIPERF_HTTP_X_DYNAMO_SESSION_ID_FROM_CORRELATION_ID
fi
if [ -n "$RECORDS" ]; then cp "$RECORDS" "$folder/profile_export.jsonl"; fi
printf 'Metric,avg,p50\\nTime to First Token (ms),12.0,11.0\\n' > "$folder/profile_export_aiperf.csv"
exit ${CODE:-0}
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "v" / "bin" / "aiperf"
    found.parent.mkdir(parents=True)
    found.write_text(FAKE)
    found.chmod(0o755)
    (tmp_path / "records").write_text(line(0, 0) + "\n" + line(0, 1) + "\n")
    monkeypatch.setenv("RECORDS", str(tmp_path / "records"))
    return found


def load_of(program: Path, tmp_path: Path, url: str = "http://x", work: Workload = WORK) -> aiperf.AIPerfLoad:
    return aiperf.AIPerfLoad(
        program, "t", work, base_url=url, token="", model=MODEL, part={"video-00000.mp4": "u"},
        folder=tmp_path / "out", text_tokens=1,
    )  # fmt: skip


async def test_a_level_that_failed_has_no_records_of_another_one(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = load_of(program, tmp_path)
    assert len(await load.level(["video-00000.mp4"], concurrency=1, repeat=0)) == 2
    monkeypatch.setenv("RECORDS", "")
    with pytest.raises(Cosmos3Error) as failed:  # the export of the level before still lies there
        await load.level(["video-00000.mp4"], concurrency=1, repeat=0)
    assert failed.value.stable_code == "aiperf_failed"


async def test_aiperf_that_ends_badly_is_no_level_whatever_it_left(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODE", "7")
    with pytest.raises(Cosmos3Error, match="ended with 7") as failed:
        await load_of(program, tmp_path).level(["video-00000.mp4"], concurrency=1, repeat=0)
    assert failed.value.stable_code == "aiperf_failed"


def test_another_version_is_refused_with_what_to_do(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert aiperf.require_version(program) == aiperf.VERSION and aiperf.find(program.parents[1], "t") == program
    for said in ("0.14.1", "aiperf 0.9.0", "10.13.0", "none"):
        monkeypatch.setenv("VERSION", said)
        for refuses in (lambda: aiperf.find(program.parents[1], "t"), lambda: aiperf.set_up(program.parents[1])):
            with pytest.raises(Cosmos3Error) as refused:
                refuses()
            assert refused.value.stable_code == "aiperf_version" and "bench setup" in refused.value.remedy


@pytest.mark.parametrize(
    ("profile", "server", "codes"),
    [
        ("session-affinity", BenchServer(), []),
        ("session-affinity", BenchServer(foreign=True), []),
        ("session-affinity", BenchServer(header="x-other"), ["session_header_unproved"]),
        ("session-affinity", BenchServer(profile="round-robin"), ["session_header_unproved"]),
        ("round-robin", BenchServer(profile="round-robin"), []),
        ("round-robin", BenchServer(header="x-correlation-id"), ["affinity_on"]),
    ],
)
async def test_what_the_server_says_of_the_proofs_session_is_believed(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str, server: BenchServer, codes: list[str]
) -> None:
    monkeypatch.setenv("ASK", sys.executable)
    work = WORK.model_copy(update={"profile": profile})
    with bench_server(server):
        load = load_of(program, tmp_path, server.url, work)
        if codes:
            with pytest.raises(Cosmos3Error) as refused:
                await load.prove()
            assert refused.value.stable_code == "run_invalid"
            assert [error.field for error in refused.value.errors] == codes
        else:
            await load.prove()
            assert load.proof == {"session-affinity": "new", "round-robin": "none"}[profile] or server.foreign
    assert load.name == "AIPerf 0.13.0"


async def test_a_server_that_makes_sessions_of_videos_is_no_round_robin_for_aiperf(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AIPerf does not write down `x-cosmos3-session`, and its proof asks about no video."""

    class OfVideos(BenchServer):
        def _home(self, session: str | None, video: str) -> tuple[int, str]:
            return 0, "new" if self.asked == 2 else "none"  # the second question is the codec's trial

    monkeypatch.setenv("ASK", sys.executable)
    make_videos(tmp_path / "clips", 2, Recipe(seconds=1, fps=2, width=32, height=32), workers=1)
    server = OfVideos(profile="round-robin")
    with bench_server(server):
        async with Reasoner(server.url, environ={"COSMOS3_REASONER_TOKEN": "t"}) as reasoner:
            with pytest.raises(Cosmos3Error) as refused:
                await run(
                    reasoner, "t", WORK.model_copy(update={"profile": "round-robin"}), tmp_path / "clips",
                    aiperf=WithAIPerf(program, "t", tmp_path / "out"),
                )  # fmt: skip
    assert [error.field for error in refused.value.errors] == ["affinity_on"] and server.asked == 2


async def test_the_summary_of_the_last_level_is_aiperfs_own(program: Path, tmp_path: Path) -> None:
    load = load_of(program, tmp_path)
    assert load.summary == ""
    assert len(await load.level(["video-00000.mp4"], concurrency=1, repeat=0)) == 2
    assert load.summary == "Metric,avg,p50\nTime to First Token (ms),12.0,11.0\n"
    (tmp_path / "out" / "c1-r0" / aiperf.SUMMARY).write_text("x" * (aiperf.MAX_SUMMARY + 9))
    assert len(aiperf.summary(tmp_path / "out" / "c1-r0")) == aiperf.MAX_SUMMARY
    assert aiperf.summary(tmp_path / "nowhere") == ""


def test_the_proxy_records_headers_and_passes_everything_on() -> None:
    server = BenchServer()
    body = {"messages": [{"content": [{"type": "video_url", "video_url": {"url": "u"}}]}], "max_completion_tokens": 2}
    with bench_server(server), recording_proxy(server.url) as (url, recorded):
        headers = {"X-Dynamo-Session-ID": "s1", "Authorization": "Bearer secret"}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers)
        assert answer.text.endswith("data: [DONE]\n\n") and answer.headers["x-cosmos3-session"] == "new"
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == MODEL
        assert httpx.post(f"{url}/none", json={}).status_code == 404
    assert recorded.requests[0]["x-dynamo-session-id"] == "s1"
    assert "secret" not in json.dumps(recorded.requests)


@pytest.mark.skipif(
    not (DIRECTORY and TOKENIZER), reason="COSMOS3_AIPERF_DIR and COSMOS3_AIPERF_TOKENIZER name no AIPerf"
)
@pytest.mark.parametrize("profile", ["session-affinity", "round-robin"])
async def test_aiperf_itself_gives_a_valid_run(tmp_path: Path, profile: str) -> None:
    make_videos(tmp_path / "clips", 3, Recipe(seconds=1, fps=2, width=32, height=32), workers=1)
    fields = {"profile": profile, "videos": 3, "questions": 2, "output_tokens": 4, "concurrency": (2,)}
    with bench_server(BenchServer(profile=profile)) as server:
        async with Reasoner(server.url, environ={"COSMOS3_REASONER_TOKEN": "bench-token"}) as reasoner:
            found = await run(
                reasoner, "bench-token", Workload.model_validate(fields), tmp_path / "clips",
                aiperf=WithAIPerf(aiperf.find(Path(DIRECTORY), TOKENIZER), TOKENIZER, tmp_path / "aiperf"),
            )  # fmt: skip
    assert check(found) == []
    assert report.write(found, tmp_path / "run")[0].requests == 6
    assert "x-correlation-id" in found.requests[0].headers
    assert found.load == f"AIPerf {aiperf.VERSION}"
