import pytest
from support.bench_server import BenchServer, Faults, bench_server

from cosmos3_serve.bench.codec import choose_codec
from cosmos3_serve.bench.seen import SLACK_TOKENS, video_tokens
from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.reasoner_client.ask import Reasoner

TOKEN = {"COSMOS3_REASONER_TOKEN": "bench-token"}


async def choose(server: BenchServer, *codecs: str) -> str:
    with bench_server(server):
        async with Reasoner(server.url, environ=TOKEN) as reasoner:
            return await choose_codec(reasoner, *([codecs] if codecs else []))


@pytest.mark.parametrize("codec", ["h264", "hevc", "vp9", "mpeg4"])
@pytest.mark.parametrize("foreign", [False, True])
async def test_the_first_codec_that_the_server_decodes_is_taken(codec: str, foreign: bool) -> None:
    assert await choose(BenchServer(decodes=(codec,), foreign=foreign)) == codec
    assert await choose(BenchServer(decodes=("h264", codec), foreign=foreign)) == "h264"


async def test_a_server_that_decodes_none_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Cosmos3Error, match=r"h264: .*cannot decode.*mpeg4: ") as refused:
        await choose(BenchServer(decodes=()), "h264", "mpeg4")
    assert refused.value.stable_code == "no_codec"


@pytest.mark.parametrize("foreign", [False, True])
async def test_an_answer_without_the_video_is_no_proof(foreign: bool) -> None:
    with pytest.raises(Cosmos3Error, match="counts no tokens of the video"):
        await choose(BenchServer(foreign=foreign, faults=Faults("blind", every=1)), "h264")


async def test_what_this_machine_cannot_encode_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosmos3_serve.bench.codec.av.codecs_available", {"mpeg4"})
    assert await choose(BenchServer(), "h264", "mpeg4") == "mpeg4"


async def test_a_server_that_is_not_there_is_no_matter_of_codecs() -> None:
    async with Reasoner("http://127.0.0.1:9", environ=TOKEN) as reasoner:
        with pytest.raises(Cosmos3Error) as refused:
            await choose_codec(reasoner)
    assert refused.value.stable_code == "unreachable"


def test_tokens_of_the_video_are_counted_or_what_is_above_the_text() -> None:
    assert video_tokens({"prompt_tokens_details": {"multimodal_tokens": {"video": 7}}}, 20) == 7
    assert video_tokens({"prompt_tokens": 20 + SLACK_TOKENS + 5}, 20) == 5
    assert video_tokens({"prompt_tokens": 25}, 20) == 0
    assert video_tokens({}, 20) is None
