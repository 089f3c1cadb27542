"""Setup: what upstream is started with, over the DOUBLE's argument classes."""

import sys
from pathlib import Path
from typing import Any

import pytest
from support.framework_service import DOUBLE

from cosmos3_serve.errors import CheckpointUnavailable, UsageError
from cosmos3_serve.generator.engines.framework.setup import build_setup, extra_fields
from cosmos3_serve.generator.replica.deployment import max_ongoing
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.weights.checkpoint import Checkpoint


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> Any:
    if "cosmos_framework" in sys.modules:
        pytest.skip("the real framework is imported here")
    monkeypatch.syspath_prepend(str(DOUBLE))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "cosmos_framework"]:
        del sys.modules[name]


def settings(**fields: Any) -> GeneratorSettings:
    return GeneratorSettings(engine="framework", **fields)


def checkpoint(path: Path) -> Checkpoint:
    return Checkpoint(path, "c", "local", "d" * 64, "random")


def test_upstream_gets_our_settings_and_its_own_defaults_otherwise(tmp_path: Path) -> None:
    chosen = settings(max_batch_size=8, guardrails=False, framework_args=("use_torch_compile=false",))
    setup = build_setup(chosen, checkpoint(tmp_path))
    assert (setup.max_num_seqs, setup.keep_going, setup.guardrails, setup.use_torch_compile) == (8, False, False, False)
    assert setup.checkpoint_path == str(tmp_path) and setup.parallelism_preset == "throughput"
    assert build_setup(settings(max_num_seqs=2), checkpoint(tmp_path)).max_num_seqs == 2
    assert build_setup(settings(), checkpoint(tmp_path)).guardrails is True


@pytest.mark.parametrize("size", [1, 4, 5, 8, 256])
def test_a_whole_batch_may_be_with_upstream(size: int) -> None:
    assert max_ongoing(settings(max_batch_size=size)) >= size


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_latency_makes_one_group_of_any_number_of_gpus(world_size: int, tmp_path: Path) -> None:
    chosen = settings(world_size=world_size, parallelism_preset="latency")
    assert build_setup(chosen, checkpoint(tmp_path)).world_size == world_size


def test_data_parallel_groups_by_the_back_door_are_refused(tmp_path: Path) -> None:
    chosen = settings(world_size=4, parallelism_preset="latency", framework_args=("cp_size=1", "cfgp_size=1"))
    with pytest.raises(UsageError, match="4 data-parallel groups"):
        build_setup(chosen, checkpoint(tmp_path))


@pytest.mark.parametrize("text", ["guardrails=false", "max_num_seqs=9", "output_dir=/x", "keep_going=true"])
def test_what_our_own_flags_set_cannot_be_contradicted(text: str) -> None:
    with pytest.raises(UsageError, match="ours to set"):
        extra_fields(settings(framework_args=(text,)))


@pytest.mark.parametrize("text", ["nonsense", "=1", "a b=1"])
def test_an_argument_needs_a_name_and_a_value(text: str) -> None:
    with pytest.raises(UsageError, match="name=value"):
        extra_fields(settings(framework_args=(text,)))


def test_values_are_json_where_they_parse() -> None:
    words = ("a=true", "b=3", 'c=["x"]', "d=nvfp4", "e=a=b")
    assert extra_fields(settings(framework_args=words)) == {"a": True, "b": 3, "c": ["x"], "d": "nvfp4", "e": "a=b"}


def test_a_field_that_upstream_does_not_have_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no_such_field"):
        build_setup(settings(framework_args=("no_such_field=1",)), checkpoint(tmp_path))


def test_a_checkpoint_that_upstream_does_not_know_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnavailable):
        build_setup(settings(), checkpoint(tmp_path / "nowhere"))
