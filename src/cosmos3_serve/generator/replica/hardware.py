"""Refuse a GPU that is no target of this service, before weights are loaded.

Asked twice: of the machine before Ray starts, where nvidia-smi names every device, and in the model's own replica,
which alone knows the device that it was given (in a joined cluster it may be on another machine).
"""

from __future__ import annotations

from collections.abc import Collection

import structlog

from cosmos3_serve.contract.targets import TARGETS, TargetStatus, TargetVerdict, judge_targets
from cosmos3_serve.errors import StartRefused
from cosmos3_serve.settings import GeneratorSettings

log = structlog.get_logger(__name__)

CODE = "unsupported_gpu"


def admit_target(settings: GeneratorSettings, capabilities: Collection[str]) -> TargetVerdict:
    """The verdict on the devices that the engine would use, logged; a forced start is logged as such.

    Args:
        capabilities: compute capabilities such as `9.0`; empty for the CPU.

    Raises:
        StartRefused: code `unsupported_gpu`: one of them is no target, and `--force-unsupported-gpu` was not given.
    """
    verdict = judge_targets(settings.engine or "", capabilities, forced=settings.force_unsupported_gpu)
    if verdict.status is TargetStatus.UNSUPPORTED and not verdict.forced:
        raise StartRefused(
            f"this GPU is not supported: {verdict.reason}",
            code=CODE,
            remedy=f"run on one of {', '.join(TARGETS)}; --force-unsupported-gpu starts all the same and is recorded",
        )
    say = log.info if verdict.status is TargetStatus.SUPPORTED else log.warning
    say(
        "gpu_target",
        engine=verdict.engine,
        target=verdict.target,
        status=verdict.status.value,
        reason=verdict.reason,
        forced=verdict.forced,
    )
    return verdict


def admit_machine(settings: GeneratorSettings, capabilities: Collection[str]) -> None:
    """As `admit_target` for every device of this machine; refuses only when none of them is a target, since which one
    the engine gets is not decided yet.

    Raises:
        StartRefused: code `unsupported_gpu`.
    """
    if settings.device == "cpu" or settings.ray_address or not capabilities:
        return
    verdicts = [judge_targets(settings.engine or "", [one]) for one in capabilities]
    if all(verdict.status is TargetStatus.UNSUPPORTED for verdict in verdicts):
        admit_target(settings, capabilities)
