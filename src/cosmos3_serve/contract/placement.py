"""Placement: how many GPUs an engine can put behind one service. Asked at start, and before a manifest is applied."""

from __future__ import annotations

from typing import Final

from cosmos3_serve.errors import UsageError
from cosmos3_serve.settings import GeneratorSettings

SHARDED: Final = (
    "with several data-parallel groups upstream answers only the share of rank 0, and every larger batch fails"
)


def check_placement(settings: GeneratorSettings) -> None:
    """
    Raises:
        UsageError: the diffusers engine over several GPUs; code `parallelism`: the framework's `throughput` over
            several (source: framework report, section 5, row 7).
    """
    if settings.world_size == 1:
        return
    if settings.engine == "diffusers":
        raise UsageError(
            f"the diffusers engine runs on one device, not on {settings.world_size}",
            remedy="leave --world-size at 1 and run one service per GPU",
        )
    if settings.engine == "framework" and settings.parallelism_preset == "throughput":
        raise UsageError(
            f"the throughput preset cannot serve over {settings.world_size} GPUs: {SHARDED}",
            code="parallelism",
            remedy="--parallelism-preset latency puts all GPUs on each sample; for more samples at once run one "
            "service per GPU, each with --world-size 1",
        )
