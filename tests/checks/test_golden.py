"""The golden evaluation's entry and verdict: PASS is the production alone, everything less is named."""

from dataclasses import replace
from typing import Any

import pytest

from cosmos3_serve.checks.golden import QUALIFIERS, entry, request
from cosmos3_serve.checks.golden_verdict import Medium, Seen, engine_of, require_target, target_of_service, verdict
from cosmos3_serve.contract.prepare import prepare_request
from cosmos3_serve.contract.wire import FRAMEWORK_BACKEND, FRAMEWORK_REVISION
from cosmos3_serve.errors import Refusal, UsageError

READY: dict[str, Any] = {
    "backend": FRAMEWORK_BACKEND,
    "framework_revision": FRAMEWORK_REVISION,
    "engine": "framework",
    "guardrails": True,
    "guardrails_effective": True,
    "max_batch_size": 4,
    "weights": "pretrained",
}
SYSTEM: dict[str, Any] = {"accelerators": [{"name": "NVIDIA B200", "compute_capability": "10.0"}]}
WAVE = {"coalesced": 2, "inference_batch": 2}
MANIFEST: dict[str, Any] = {
    "status": "completed",
    "batch_size": 2,
    "guardrails": True,
    "weights": "pretrained",
    "samples": [{"guardrails": {"applied": True}, "wave": WAVE}] * 2,
}
IMAGES = [Medium(f"id/{name}/vision.jpg", 960, 960, 1, "0" * 64) for name in ("golden-a", "golden-b")]


def seen(
    ready: dict | None = None,
    system: dict | None = None,
    manifest: dict | None = None,
    images: list[Medium] = IMAGES,
    guardrails: bool | None = None,
) -> Seen:
    return Seen(READY | (ready or {}), SYSTEM | (system or {}), MANIFEST | (manifest or {}), images, guardrails)


def test_the_production_passes() -> None:
    result = verdict(seen(guardrails=True))
    assert (result["status"], result["failures"], result["not_proven"]) == ("PASS", [], [])
    assert result["target"]["target"] == "sm_100" and result["target"]["status"] == "unproven"
    assert (result["coalesced"], result["inference_batches"]) == ([2], [2])


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"ready": {"engine": "diffusers", "framework_revision": "diffusers-0.42.1"}}, "PASS_DIFFUSERS"),
        ({"manifest": {"weights": "random"}}, "PASS_RANDOM"),
        ({"manifest": {"weights": "unknown"}}, "PASS_WEIGHTS_UNKNOWN"),
        ({"ready": {"guardrails": False}, "manifest": {"guardrails": False}}, "PASS_UNGUARDED"),
        ({"manifest": {"samples": []}}, "PASS_GUARDRAILS_UNPROVEN"),
        ({"manifest": {"samples": [{"guardrails": {"applied": False}}] * 2}}, "PASS_GUARDRAILS_UNPROVEN"),
        ({"system": {"engine": {"capabilities": []}}}, "PASS_CPU"),
        ({"system": {"accelerators": []}}, "PASS_GPU_UNKNOWN"),
        ({"system": {"engine": {"capabilities": ["8.0"]}}}, "PASS_GPU_FORCED"),
        ({"ready": {"framework_revision": "0" * 40}}, "PASS_DIFFUSERS"),
    ],
)
def test_anything_less_is_in_the_status_and_in_words(changes: dict[str, Any], status: str) -> None:
    result = verdict(seen(**changes))
    assert (result["status"], result["failures"]) == (status, [])
    assert result["not_proven"] == [QUALIFIERS[status.removeprefix("PASS_")]]


def test_the_tiny_service_on_a_cpu_says_all_of_it() -> None:
    ready = {"engine": "diffusers", "framework_revision": "diffusers-0.42.1", "guardrails": False}
    manifest = {"weights": "random", "guardrails": False}
    result = verdict(seen(ready, {"engine": {"capabilities": []}}, manifest, guardrails=False))
    assert result["status"] == "PASS_DIFFUSERS_RANDOM_UNGUARDED_CPU"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"manifest": {"status": "partial"}}, "not completed"),
        ({"manifest": {"batch_size": 1}}, "batch_size"),
        ({"ready": {"max_batch_size": 1}}, "max_batch_size"),
        ({"ready": {"max_batch_size": None}}, "max_batch_size"),
        ({"manifest": {"guardrails": False}}, "differ"),
        ({"guardrails": False}, "asked for"),
        ({"ready": {"guardrails_effective": False}}, "not effective"),
        ({"images": IMAGES[:1]}, "1 images"),
        ({"images": [IMAGES[0]] * 2}, "one for each"),
        ({"images": []}, "0 images"),
        ({"images": [*IMAGES, replace(IMAGES[0], path="id/golden-c/vision.jpg")]}, "one for each"),
        ({"ready": {"weights": "blockworld"}}, "/ready says 'blockworld'"),
    ],
)
def test_what_the_smoke_requires_fails_it(changes: dict[str, Any], text: str) -> None:
    result = verdict(seen(**changes))
    assert result["status"] == "FAIL" and text in " ".join(result["failures"])


BLOCKWORLD: dict[str, Any] = {
    "ready": {"weights": "blockworld"},
    "manifest": {"weights": "blockworld", "batch_size": 4, "samples": MANIFEST["samples"] * 2},
}
SCENES = [
    Medium(f"id/{sample['name']}/vision", 320, 192, sample["num_frames"], "0" * 64)
    for sample in request("blockworld")["samples"]
]


def test_block_world_samples_are_named_with_whether_they_show_what_was_asked() -> None:
    result = verdict(seen(**BLOCKWORLD, images=SCENES))
    assert (result["status"], set(result["shown"].values())) == ("PASS_BLOCKWORLD", {True})
    assert ([len(result[kind]) for kind in ("images", "clips")], result["clips"][0]["frames"]) == ([2, 2], 9)
    wrong = [replace(SCENES[0], fault="a blue cone"), *SCENES[1:]]
    result = verdict(seen(**BLOCKWORLD, images=wrong))
    assert (result["status"], result["failures"]) == ("FAIL", ["golden-cube: a blue cone"])
    assert [name for name, right in result["shown"].items() if not right] == ["golden-cube"]


def test_pictures_of_other_weights_claim_nothing_about_what_they_show() -> None:
    assert set(verdict(seen())["shown"].values()) == {None}


def test_a_batch_that_never_came_is_a_failure_with_its_reason() -> None:
    result = verdict(Seen(READY, SYSTEM, {}, []), ["ray-batch ended with exit code 4"])
    assert result["status"] == "FAIL" and result["failures"] == ["ray-batch ended with exit code 4"]


def test_an_engine_is_the_frameworks_only_with_revision_and_backend() -> None:
    bare = {"backend": FRAMEWORK_BACKEND, "framework_revision": FRAMEWORK_REVISION}
    assert engine_of(bare) == "framework"
    assert engine_of(bare | {"backend": "other"}) == "unknown"
    assert engine_of(READY | {"framework_revision": "x"}) == "unknown"
    assert engine_of({"engine": "diffusers"}) == "diffusers"


def test_a_target_must_be_the_one_that_runs() -> None:
    found = target_of_service(READY, SYSTEM)
    require_target("sm_100", found)
    for wanted, have in (("sm_120", found), ("sm_90", None), ("cpu", found)):
        with pytest.raises(Refusal) as refused:
            require_target(wanted, have)
        assert refused.value.stable_code == "wrong_target" and wanted in refused.value.detail


def test_the_engines_own_device_goes_before_what_the_machine_has() -> None:
    found = target_of_service(READY, SYSTEM | {"engine": {"capabilities": ["9.0"]}})
    assert found is not None and found.target == "sm_90"


def test_the_entry_has_the_baselines_fields_and_claims_nothing() -> None:
    shown = entry("cosmos3-ray-serve")
    assert shown.keys() >= {"name", "image", "dockerfile", "foundation", "physical_ai", "safety", "golden_eval"}
    evaluation = shown["golden_eval"]
    assert evaluation.keys() >= {
        *("kind", "command", "gpu", "timeout_seconds", "status", "module", "env_module", "artifact"),
    }
    assert evaluation["status"] == "unproven" and set(evaluation["targets"].values()) == {"unproven"}
    with pytest.raises(UsageError, match="no golden evaluation"):
        entry("cosmos4")


def test_the_batch_is_the_smokes() -> None:
    batch = prepare_request(request())
    assert [(s["seed"], s["num_steps"], s["model_mode"]) for s in batch.samples] == [
        (17, 4, "text2image"),
        (23, 4, "text2image"),
    ]


def test_the_block_world_batch_asks_for_two_pictures_and_two_clips() -> None:
    batch = prepare_request(request("blockworld"))
    assert [s["model_mode"] for s in batch.samples] == ["text2image"] * 2 + ["text2video"] * 2
    assert batch.samples[2]["prompt"].endswith("The red sphere slides to the right.")
