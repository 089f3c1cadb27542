"""The quickstart's second act without a service: when it is left out, and which answers it does not take."""

import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from cosmos3_serve.errors import CheckpointUnavailable, ContractViolation
from cosmos3_serve.reasoner_client.ask import Answer, for_terminal
from cosmos3_serve.trial import quickstart, reasoner_act


def answer(session: str, media: str, replica: str = "replica-0", tokens: int = 40) -> Answer:
    facts = {"x-cosmos3-session": session, "x-cosmos3-media": media, "x-cosmos3-replica": replica}
    usage = {"prompt_tokens_details": {"multimodal_tokens": {"video": tokens}}}
    return Answer("why?", "word", "length", usage, facts)


def test_a_session_at_home_with_a_video_that_is_held_passes() -> None:
    reasoner_act.check([answer("new", "miss"), answer("hit", "hit"), answer("hit", "hit")])


@pytest.mark.parametrize(
    "second",
    [
        answer("new", "hit"),
        answer("moved", "hit"),
        answer("hit", "miss"),
        answer("hit", "hit", "replica-1"),
        answer("hit", "hit", tokens=0),
        Answer("why?", "word"),
    ],
)
def test_an_answer_that_shows_less_is_no_success(second: Answer) -> None:
    with pytest.raises(ContractViolation, match="answer 2"):
        reasoner_act.check([answer("new", "miss"), second])


def test_a_first_answer_without_headers_is_no_success() -> None:
    with pytest.raises(ContractViolation, match="answer 1"):
        reasoner_act.check([Answer("why?", "word", "length", answer("new", "miss").usage)])


@pytest.fixture
def first_act(monkeypatch: pytest.MonkeyPatch) -> None:
    """A double: the first act has passed."""
    monkeypatch.setattr(quickstart, "_first_act", lambda workdir, checkpoint, say: {"publication": str(workdir)})


def shown() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, soft_wrap=True, highlight=False), text


@pytest.mark.usefixtures("first_act")
def test_without_vllm_it_says_in_one_line_how_to_get_it_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSMOS3_VLLM_PYTHON", sys.executable)  # has none
    monkeypatch.setenv("COSMOS3_REASONER_PORT", "nonsense")  # somebody else's
    console, text = shown()
    result = quickstart.run(tmp_path / "work", console)
    assert result["reasoner"] is None
    assert "make setup-reasoner" in result["reasoner_skipped"]
    (line,) = [line for line in text.getvalue().splitlines() if "second act" in line]
    assert "make setup-reasoner" in line


@pytest.mark.usefixtures("first_act")
def test_left_out_by_flag_it_says_nothing(tmp_path: Path) -> None:
    console, text = shown()
    result = quickstart.run(tmp_path / "work", console, reasoner_workers=0)
    assert result["reasoner"] is None
    assert "--no-reasoner" in result["reasoner_skipped"]
    assert "second act" not in text.getvalue()
    json.dumps(result)


def test_what_a_model_says_cannot_steer_a_terminal() -> None:
    assert for_terminal("a\x1b[2Jb\r\x07é\n\t") == "a\ufffd[2Jb\ufffd\ufffdé\n\t"


def test_an_answer_about_nothing_measured_is_not_called_one_of_random_weights() -> None:
    assert reasoner_act.verdict("x", None, "random") == "random weights"
    assert reasoner_act.verdict("x", None, "blockworld") == "nothing was measured in the clip"
    assert reasoner_act.verdict("It falls", "it falls", "blockworld") == "as measured"
    assert reasoner_act.verdict("it turns", "it falls", "blockworld") == "measured: it falls"


def test_without_the_block_world_checkpoint_it_says_so_and_takes_random_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[str] = []
    assert quickstart.choose(told.append) == "blockworld"
    monkeypatch.setattr("cosmos3_serve.weights.blockworld.SOURCE", tmp_path)
    monkeypatch.setattr("cosmos3_serve.weights.blockworld.PACKAGE", "no_such_package")
    assert quickstart.choose(told.append) == "tiny"
    assert len(told) == 1 and "random weights" in told[0]
    (tmp_path / ".manifest.json").write_text('{"files": []}')
    with pytest.raises(CheckpointUnavailable):
        quickstart.choose(told.append)
