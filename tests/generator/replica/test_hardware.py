"""A GPU that is no target is refused before weights are loaded; forced, it starts and says so."""

from typing import Any

import pytest
import structlog

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.generator.replica.hardware import CODE, admit_machine, admit_target
from cosmos3_serve.settings import GeneratorSettings


def settings(**fields: Any) -> GeneratorSettings:
    return GeneratorSettings.model_validate({"engine": "diffusers"} | fields)


def test_an_unsupported_device_is_refused_with_both_ways_out() -> None:
    with pytest.raises(StartRefused) as refused:
        admit_target(settings(), ["8.0"])
    assert refused.value.stable_code == CODE and refused.value.exit_code == 3
    assert "sm_80" in refused.value.detail
    assert "sm_100" in refused.value.remedy and "--force-unsupported-gpu" in refused.value.remedy


def test_a_forced_start_is_logged_as_forced() -> None:
    with structlog.testing.capture_logs() as lines:
        verdict = admit_target(settings(force_unsupported_gpu=True), ["8.0"])
    assert verdict.forced
    (line,) = lines
    assert (line["event"], line["target"], line["status"], line["forced"]) == (
        *("gpu_target", "sm_80", "unsupported"),
        True,
    )
    assert line["log_level"] == "warning"


@pytest.mark.parametrize(("capabilities", "status"), [([], "cpu"), (["9.0"], "unproven"), (["12.0"], "unproven")])
def test_what_is_not_proven_starts_with_a_warning(capabilities: list[str], status: str) -> None:
    with structlog.testing.capture_logs() as lines:
        assert admit_target(settings(), capabilities).status == status
    assert [line["log_level"] for line in lines] == ["warning"]


def test_the_machine_is_refused_only_when_no_device_of_it_could_do() -> None:
    admit_machine(settings(), ["8.0", "9.0"])
    admit_machine(settings(), [])
    with pytest.raises(StartRefused):
        admit_machine(settings(), ["8.0", "7.5"])


@pytest.mark.parametrize("fields", [{"device": "cpu"}, {"ray_address": "10.0.0.1:6379"}, {"force_unsupported_gpu": 1}])
def test_the_machine_is_not_judged_where_its_devices_are_not_used(fields: dict[str, Any]) -> None:
    admit_machine(settings(**fields), ["8.0"])


def test_a_typo_in_the_variable_is_no_consent() -> None:
    from cosmos3_serve.errors import UsageError

    with pytest.raises(UsageError):
        GeneratorSettings.load({}, {"COSMOS3_FORCE_UNSUPPORTED_GPU": "ture"})
