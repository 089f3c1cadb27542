"""Faults: what upstream raised, as one of our codes, and whether its worker can still be trusted.

Upstream raises plain ValueErrors with prompts and paths in them, for a whole batch, through two processes. Types are
told by name: torch's and Ray's classes need not be importable where this runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cosmos3_serve.errors import SampleCode

WORKER_LOST = frozenset({"RayActorError", "ActorDiedError", "ActorUnavailableError", "WorkerCrashedError"})
# Not a broken request: the process's CUDA context, or its ranks' connection, is gone for good.
POISONED = re.compile(r"CUDA error|NCCL (?:error|timeout)|device-side assert|cudaError|CUBLAS_STATUS|Watchdog caught")
GUARDRAIL = re.compile(r"Guardrail blocked (prompt|video|text|image)")
MIXED = re.compile(r"^Attribute '(\w+)' is not the same for all samples|^Batch \d+ keys")
COUNT = re.compile(r"doesn't preserve batch size")
# Pillow's words, in upstream's worker, about bytes that are named as a picture; they quote the path.
UNREADABLE = re.compile(r"cannot identify image file|image file is truncated|broken data stream|decompression bomb")
# Upstream's own words about a request which quote nothing of it.
HARMLESS = (
    re.compile(r"^Resolution '[\w]{1,8}' only supports image generation"),
    re.compile(r"^Invalid vision extension"),
    re.compile(r"^transfer inference requires at least one control hint"),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """`fatal`: the worker is lost or poisoned, and its replica must be replaced. `passing`: never say it is the
    request's fault."""

    code: SampleCode
    message: str
    fatal: bool = False


def root_cause(error: BaseException) -> BaseException:
    """What was raised first, in the worker; Ray wraps it once per process it crosses."""
    seen = 0
    while seen < 16:
        inner = getattr(error, "cause", None)
        if not isinstance(inner, BaseException) or inner is error:
            return error
        error, seen = inner, seen + 1
    return error


def fault_of(error: BaseException) -> Fault:
    """The fault behind an exception that came back from the deployment's handle."""
    cause = root_cause(error)
    names = {kind.__name__ for kind in type(cause).__mro__}
    text = _text(cause)
    if isinstance(cause, TimeoutError):
        return Fault(
            SampleCode.DEADLINE_EXCEEDED,
            "the framework gave the batch up after its 300 s; its worker is replaced",
            True,
        )
    if names & WORKER_LOST:
        return Fault(SampleCode.ENGINE_FAILED, "a worker of the framework died; it is replaced", True)
    if "OutOfMemory" in type(cause).__name__:
        # Ray's own: the machine was out of memory and Ray killed the worker.
        killed = "RayError" in names
        return Fault(SampleCode.OUT_OF_MEMORY, "the framework ran out of memory", killed)
    if POISONED.search(text):
        return Fault(SampleCode.ENGINE_FAILED, "the framework's device failed; its worker is replaced", True)
    blocked = GUARDRAIL.search(text)
    if blocked:
        return Fault(SampleCode.GUARDRAIL_BLOCKED, f"the framework's guardrail blocked the {blocked[1]}")
    if type(cause).__name__ == "ValidationError" and hasattr(cause, "errors"):
        return Fault(SampleCode.INPUT_INVALID, f"the framework refuses {_places(cause)}")
    mixed = MIXED.match(text)
    if mixed:
        what = f" ({mixed[1]} differs)" if mixed[1] else ""
        return Fault(SampleCode.ENGINE_FAILED, f"the framework cannot run these samples together{what}")
    if COUNT.search(text):
        return Fault(SampleCode.OUTPUT_INVALID, "the framework answered another number of results than samples")
    if UNREADABLE.search(text):
        return Fault(SampleCode.INPUT_INVALID, "a picture is damaged, too large, or no PNG, JPEG or WebP")
    for harmless in HARMLESS:
        if harmless.match(text):
            return Fault(SampleCode.INPUT_INVALID, text.splitlines()[0][:200])
    return Fault(SampleCode.ENGINE_FAILED, f"the framework failed ({type(cause).__name__})")


def _text(error: BaseException) -> str:
    try:
        return str(error)[:4000]
    except Exception:
        return ""


def _places(error: BaseException) -> str:
    """Field paths of a pydantic error, without the values."""
    try:
        found = [".".join(str(part) for part in item["loc"]) for item in error.errors()]  # type: ignore[attr-defined]
    except Exception:
        found = []
    return ", ".join(sorted({place for place in found if place})[:5]) or "the sample"
