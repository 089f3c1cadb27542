"""Every word that a client wrote and a model reads is checked, as the model reads it."""

from typing import Any

from cosmos3_serve.contract.profile import FRAMEWORK_PROFILE, diffusers_profile
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.generator.guardrails.texts import texts_of

TINY = diffusers_profile("0.0.0", tiny=True)


def texts(profile: Any = TINY, **sample: Any) -> dict[str, str]:
    asked = {"name": "a", "seed": 1, **sample}
    return dict(texts_of(asked, resolve_sample(SampleOverrides.model_validate(asked), profile, seed=1)))


def test_the_prompt_as_the_model_reads_it() -> None:
    found = texts(prompt="a cat", num_frames=1, resolution_template="and {width} words more")
    assert list(found) == ["prompt"]
    assert found["prompt"].startswith("a cat. and ") and found["prompt"].endswith(" words more")


def test_the_clients_negative_prompt_is_checked_ours_is_not() -> None:
    assert list(texts(prompt="a cat", num_frames=25)) == ["prompt"]
    found = texts(prompt="a cat", num_frames=25, negative_prompt="fog")
    assert "fog" in found["negative_prompt"]


def test_words_in_templates_of_the_negative_prompt() -> None:
    found = texts(
        prompt="a cat", num_frames=25, negative_metadata_mode="inverse", negative_prompt_keep_metadata=False,
        inverse_duration_template="hidden words {duration}",
    )  # fmt: skip
    assert "hidden words" in found["negative_prompt"]


def test_a_json_prompt_is_read_through_its_escapes() -> None:
    found = texts(prompt='{"scene": "\\u0062ad words"}', num_frames=1)
    assert "bad words" in found["prompt"]


def test_an_action_quotes_a_view_point() -> None:
    sample = {"model_mode": "wam", "domain_name": "bridge_orig_lerobot", "vision_path": "s3://b/a.png"}
    found = texts(prompt="pick it up", view_point="ego_view", **sample)
    assert found == {"prompt": "pick it up", "view_point": "ego_view"}


def test_a_question_is_checked_as_it_is() -> None:
    found = texts(FRAMEWORK_PROFILE, model_mode="reasoner", prompt="what is this?")
    assert found == {"prompt": "what is this?"}


def test_an_empty_text_is_none() -> None:
    assert texts(
        prompt=" ", negative_prompt="", num_frames=1, resolution_template="", duration_template="",
        negative_metadata_mode="none", negative_prompt_keep_metadata=False,
    ) == {}  # fmt: skip
