"""What the quickstart says at its end, without running one."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from cosmos3_serve.cli import quickstart
from cosmos3_serve.cli.main import build
from cosmos3_serve.contract.profile import diffusers_profile
from cosmos3_serve.contract.wire import DIFFUSERS_REVISION

RESULT: dict[str, Any] = {
    "publication": "/some dir/[red]/publication",
    "provenance": "/some dir/[red]/publication/provenance.json",
    "samples": [{"name": "a"}, {"name": "b"}],
    "artifacts": [{"path": "r/a/vision.jpg", "bytes": 1500}, {"path": "r/b/vision.jpg", "bytes": 500}],
    "contact_sheet": "/some dir/[red]/contact-sheet.png",
    "engine": "diffusers-0.0.0",
    "weights": "random",
    "seconds": 41.25,
    "reasoner": None,
    "reasoner_skipped": "no Python with vLLM [here]",
}
ACT = {"video": "/p/r/rain/vision.mp4", "seconds": 12.0, "answers": [{}, {}], "model": "tiny", "weights": "random"}


def said(**changes: Any) -> str:
    out = io.StringIO()
    quickstart._farewell(Console(file=out, highlight=False, soft_wrap=True), RESULT | changes)
    return out.getvalue()


def test_it_says_where_everything_is_and_that_the_pictures_are_noise() -> None:
    text = said()
    assert "Done in 41.25 s. 2 samples, 2 artifacts, 2 kB, verified." in text
    assert "engine diffusers-0.0.0" in text and "weights: random" in text and "guardrails off" in text
    for name in ("publication", "provenance", "contact_sheet"):
        assert RESULT[name] in text  # brackets are a path's own, not markup
    assert "cosmos3 review build '/some dir/[red]/publication' --no-rrd" in text


def test_of_block_world_weights_it_says_how_many_samples_and_answers_are_right() -> None:
    samples = [
        {"name": n, "shows_its_prompt": right} for n, right in zip("abcd", (True, False, True, None), strict=True)
    ]
    answers = [{"measured": "it falls", "right": True}, {"measured": None, "right": None}]
    text = said(weights="blockworld", samples=samples, reasoner=ACT | {"weights": "blockworld", "answers": answers})
    assert "weights: blockworld (2 of 3 measured samples show what their prompts say)" in text
    assert "weights: blockworld (1 of 1 say what is measured in the clip)" in text
    assert "noise" not in text and "mean nothing" not in text


def test_an_answer_about_a_clip_in_which_nothing_is_found_counts_as_unmeasured() -> None:
    act = ACT | {"weights": "blockworld", "answers": [{"measured": None, "right": None}] * 2}
    assert "nothing was measured in the clip" in said(reasoner=act)


@pytest.mark.parametrize("act", [None, ACT])
def test_it_tells_of_the_second_act_or_why_there_was_none(act: dict[str, Any] | None) -> None:
    text = said(reasoner=act)
    assert ("Asked about rain in 12 s. 2 answers of tiny, weights: random" in text) is (act is not None)
    assert ("no second act: no Python with vLLM [here]" in text) is (act is None)


def test_what_to_run_next_expects_the_revision_that_this_package_pins() -> None:
    """The pin of pyproject.toml is compared with the constant in tests/deploy/test_kuberay.py."""
    text = said()
    assert re.findall(r"--expected-revision (\S+)", text) == [DIFFUSERS_REVISION]
    assert diffusers_profile(DIFFUSERS_REVISION.removeprefix("diffusers-")).revision == DIFFUSERS_REVISION
    assert "{" not in text[text.index("Next, with a GPU") :]


def test_every_command_to_run_next_exists() -> None:
    app = build()
    known = {c.name for c in app.registered_commands} | {g.typer_instance.info.name for g in app.registered_groups}
    assert set(re.findall(r"^  cosmos3 ([a-z-]+)", said(), re.MULTILINE)) <= known | {"review"}
