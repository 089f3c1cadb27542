"""Action files: shape, numbers, size."""

import json

import pytest

from cosmos3_serve.contract.modes import ACTION_DOMAINS
from cosmos3_serve.contract.profile import DIFFUSERS_DOMAINS, diffusers_profile
from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.engines import actions
from cosmos3_serve.generator.engines.actions import DOMAIN_IDS, VIEW_POINTS, read_actions


def test_good_file(tmp_path):
    (tmp_path / "a.json").write_text("[[1, 2.5], [3, -4e-3]]")
    assert read_actions(tmp_path / "a.json", "action_path", width=2) == [[1.0, 2.5], [3.0, -0.004]]


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("\xff", "no JSON"),
        ("{}", "non-empty list"),
        ("[]", "non-empty list"),
        ("[1, 2]", "step 0"),
        ("[[1, 2], [1]]", "step 1 has 1 numbers; this domain has 2"),
        ("[[1, 2], [1, 2, 3]]", "step 1 has 3"),
        ("[[1, NaN]]", "finite"),
        ("[[1, Infinity]]", "finite"),
        ("[[1, null]]", "finite"),
        ('[[1, "2"]]', "finite"),
        ("[[1, true]]", "finite"),
        ("[[1, 1" + "0" * 400 + "]]", "finite"),
    ],
)
def test_bad_file(tmp_path, text, says):
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(SampleError, match=says) as caught:
        read_actions(tmp_path / "a.json", "action_path", width=2)
    assert caught.value.sample_code is SampleCode.INPUT_INVALID


def test_limits(tmp_path, monkeypatch):
    (tmp_path / "a.json").write_text(json.dumps([[0, 0]] * 4))
    monkeypatch.setattr(actions, "MAX_STEPS", 3)
    with pytest.raises(SampleError, match="more than 3 steps"):
        read_actions(tmp_path / "a.json", "x", width=2)
    monkeypatch.setattr(actions, "MAX_BYTES", 3)
    with pytest.raises(SampleError, match="MiB"):
        read_actions(tmp_path / "a.json", "x", width=2)


def test_tables_agree_with_the_contract():
    assert set(DOMAIN_IDS) == set(DIFFUSERS_DOMAINS) >= set(ACTION_DOMAINS)
    assert diffusers_profile("0").view_points == VIEW_POINTS


def test_ids_and_widths_are_those_of_the_pinned_diffusers():
    from diffusers.pipelines.cosmos import pipeline_cosmos3_omni as upstream

    for name, width in upstream._EMBODIMENT_TO_RAW_ACTION_DIM.items():
        assert (DOMAIN_IDS[name], DIFFUSERS_DOMAINS[name]) == (upstream._EMBODIMENT_TO_DOMAIN_ID[name], width), name
