"""The list of what each engine loads from the Hub."""

import re

import pytest

from cosmos3_serve.settings import Engine
from cosmos3_serve.weights.assets import GUARDRAIL1, GUARDRAIL_1_0, NANO, QWEN_GUARD, assets_of

VAE = ("Wan-AI/Wan2.2-TI2V-5B", "Wan2.2_VAE.pth")
AVAE = ("nvidia/Cosmos3-Nano", "sound_tokenizer/config.json")


@pytest.mark.parametrize(
    ("engine", "guardrails", "repos"),
    [
        ("diffusers", True, [GUARDRAIL_1_0.repo, QWEN_GUARD.repo, NANO.repo]),
        ("diffusers", False, [NANO.repo]),
        ("framework", True, [GUARDRAIL1.repo, QWEN_GUARD.repo, NANO.repo, VAE[0], AVAE[0]]),
        ("framework", False, [NANO.repo, VAE[0], AVAE[0]]),
    ],
)
def test_each_engine_has_its_list(engine: Engine, guardrails: bool, repos: list[str]) -> None:
    found = assets_of(engine, guardrails=guardrails, guardrail_revision="a" * 40)
    assert [asset.repo for asset in found] == repos
    assert all(re.fullmatch(r"[0-9a-f]{40}", asset.revision) and asset.purpose for asset in found)
    assert all(asset.probe_file for asset in found if asset.gated)


def test_upstreams_own_assets_can_be_asked_for() -> None:
    found = assets_of("framework", guardrails=False, checkpoint=None)
    assert [(asset.repo, asset.probe_file) for asset in found] == [VAE, AVAE]


def test_a_missing_guardrail_revision_shows() -> None:
    assert assets_of("diffusers", guardrails=True)[0].revision == ""
