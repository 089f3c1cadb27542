"""Placement: which engine may have several GPUs behind one service."""

from typing import Any

import pytest

from cosmos3_serve.contract.placement import check_placement
from cosmos3_serve.errors import UsageError
from cosmos3_serve.settings import GeneratorSettings


def settings(engine: Any, **fields: Any) -> GeneratorSettings:
    return GeneratorSettings(engine=engine, **fields)


def test_throughput_over_several_gpus_is_refused_with_what_to_use() -> None:
    with pytest.raises(UsageError) as refused:
        check_placement(settings("framework", world_size=2))
    assert refused.value.stable_code == "parallelism"
    assert "--parallelism-preset latency" in refused.value.remedy and "--world-size 1" in refused.value.remedy


def test_the_diffusers_engine_has_one_device() -> None:
    with pytest.raises(UsageError) as refused:
        check_placement(settings("diffusers", world_size=2, parallelism_preset="latency"))
    assert refused.value.stable_code == "usage" and "one device" in refused.value.detail


@pytest.mark.parametrize("engine", ["diffusers", "framework", None])
def test_one_gpu_is_always_right(engine: str | None) -> None:
    check_placement(settings(engine))
    check_placement(settings("framework", world_size=8, parallelism_preset="latency"))
