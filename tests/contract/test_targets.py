"""GPU targets: nothing is supported without an accepted run on record, and the records are what the table says."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from cosmos3_serve.contract.targets import EVIDENCE, TARGETS, Evidence, TargetStatus, judge_targets, target_of

ROOT = Path(__file__).parents[2]
ACCEPTED = replace(EVIDENCE[0], target="sm_100", scope="service", weights="pretrained", guardrails=True)


def status(engine: str, *capabilities: str, evidence: tuple[Evidence, ...] = EVIDENCE) -> TargetStatus:
    return judge_targets(engine, capabilities, evidence=evidence).status


@pytest.mark.parametrize("item", EVIDENCE, ids=lambda e: f"{e.engine}-{e.target}")
def test_every_record_is_committed_and_says_what_the_table_says(item: Evidence) -> None:
    data = (ROOT / item.file).read_bytes()
    assert hashlib.sha256(data).hexdigest() == item.sha256
    text = data.decode()
    facts = [item.date, item.card, item.driver, item.weights, *(v.split()[-1] for v in item.versions.split(", "))]
    assert [fact for fact in facts if fact not in text] == []
    assert item.target in TARGETS


def test_nothing_is_called_supported_on_what_is_on_record_today() -> None:
    for engine in ("framework", "diffusers"):
        for capability in ("9.0", "10.0", "12.0"):
            assert status(engine, capability) is TargetStatus.UNPROVEN
    h200 = judge_targets("diffusers", ["9.0"])
    assert "random weights" in h200.reason and not h200.supported and h200.as_dict()["evidence"][0]["file"]
    assert judge_targets("framework", ["9.0"]).evidence == (), "evidence belongs to one engine"


def test_an_accepted_run_supports_its_own_target_and_engine_alone() -> None:
    table = (*EVIDENCE, ACCEPTED)
    assert status("diffusers", "10.0", evidence=table) is TargetStatus.SUPPORTED
    assert status("diffusers", "12.0", evidence=table) is TargetStatus.UNPROVEN
    assert status("framework", "10.0", evidence=table) is TargetStatus.UNPROVEN
    assert status("diffusers", "10.3", evidence=table) is TargetStatus.UNSUPPORTED


@pytest.mark.parametrize("short", [{"weights": "random"}, {"guardrails": False}, {"scope": "engine"}])
def test_less_than_acceptance_is_unproven(short: dict) -> None:
    assert status("diffusers", "10.0", evidence=(replace(ACCEPTED, **short),)) is TargetStatus.UNPROVEN


def test_a_recorded_failure_makes_the_target_unsupported_until_a_later_run_passes() -> None:
    failed = replace(ACCEPTED, outcome="failed")
    assert status("diffusers", "10.0", evidence=(ACCEPTED, failed)) is TargetStatus.UNSUPPORTED
    assert status("diffusers", "10.0", evidence=(failed, ACCEPTED)) is TargetStatus.SUPPORTED


@pytest.mark.parametrize("capability", ["8.0", "8.9", "7.5", "10.3", "12.1", "", "nonsense"])
def test_other_capabilities_are_unsupported(capability: str) -> None:
    assert status("diffusers", capability) is TargetStatus.UNSUPPORTED


def test_the_cpu_is_a_row_of_its_own() -> None:
    verdict = judge_targets("diffusers", [])
    assert (verdict.target, verdict.status, verdict.supported) == ("cpu", TargetStatus.CPU, False)
    assert "tests" in verdict.reason


def test_the_worst_of_several_devices_decides_and_forcing_is_recorded_only_where_it_mattered() -> None:
    mixed = judge_targets("diffusers", ["9.0", "8.0", "9.0"], forced=True)
    assert mixed.target == "sm_80,sm_90" and mixed.status is TargetStatus.UNSUPPORTED and mixed.forced
    assert not judge_targets("diffusers", ["9.0"], forced=True).forced


def test_names_follow_the_capability() -> None:
    assert [target_of(c) for c in ("9.0", "10.0", " 12.0 ")] == ["sm_90", "sm_100", "sm_120"]
