"""GPU targets: which compute capabilities the service is for, and what was shown on each, engine by engine.

A target counts as supported only where a committed record shows the whole service on it: trained weights, guardrails
applied, a batch of two with decodable artifacts (docs/contract.md 8). A start, an import or a kernel that runs is not
that; a listed target without it is `unproven`. Targets are judged one by one: evidence for sm_100 says nothing of
sm_103 or sm_120, and no other engine ever steps in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

Engine = Literal["framework", "diffusers"]
CPU: Final = "cpu"


class TargetStatus(StrEnum):
    """What may be claimed of a target.

    `cpu` is a row of its own: good for tests and the quickstart, never for production.
    """

    SUPPORTED = "supported"
    UNPROVEN = "unproven"
    UNSUPPORTED = "unsupported"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One committed record of something that ran on a target.

    Attributes:
        outcome: `failed` keeps a kernel's refusal on record and makes the target unsupported for this engine.
        scope: `service` is the golden evaluation through the HTTP service, `engine` the engine alone.
        driver, versions: of the machine that it ran on.
        file: path in the repository; `sha256` is of its bytes, so that the table cannot outlive the record.
    """

    engine: Engine
    target: str
    outcome: Literal["passed", "failed"]
    scope: Literal["service", "engine"]
    weights: Literal["random", "pretrained"]
    guardrails: bool
    date: str
    card: str
    driver: str
    versions: str
    file: str
    sha256: str

    @property
    def accepted(self) -> bool:
        """Whether it is enough to call the target supported."""
        whole = self.scope == "service" and self.weights == "pretrained" and self.guardrails
        return self.outcome == "passed" and whole

    @property
    def proves(self) -> str:
        """What may be said of it, in words."""
        guarded = "guardrails applied" if self.guardrails else "no guardrails"
        what = "the service" if self.scope == "service" else "the engine alone"
        return f"{what} {self.outcome}, {self.weights} weights, {guarded}, {self.card}, {self.date}"

    def as_dict(self) -> dict[str, Any]:
        return {"engine": self.engine, "target": self.target, "proves": self.proves, "file": self.file}


TARGETS: Final[dict[str, str]] = {
    "sm_90": "H100, H200 (Hopper)",
    "sm_100": "B200 (Blackwell)",
    "sm_120": "RTX PRO 6000 (Blackwell)",
}

EVIDENCE: Final[tuple[Evidence, ...]] = (
    Evidence(
        engine="diffusers",
        target="sm_90",
        outcome="passed",
        scope="engine",
        weights="random",
        guardrails=False,
        date="2026-11-29",
        card="NVIDIA H200",
        driver="580.159.04",
        versions="torch 2.11.0+cu130, diffusers 0.42.1",
        file="benchmarks/results/2026-11-29-h200-generator-after.json",
        sha256="6150dd7553883ce16db7af8344827e94206537fff0a9aa3323eb94116650d23a",
    ),
    Evidence(
        engine="diffusers",
        target="sm_90",
        outcome="passed",
        scope="engine",
        weights="random",
        guardrails=False,
        date="2026-11-30",
        card="NVIDIA H200",
        driver="580.159.04",
        versions="torch 2.11.0+cu130, diffusers 0.42.1, transformers 5.17.0",
        file="benchmarks/results/2026-11-30-h200-diffusers-target.json",
        sha256="c9df410d5fecfd8092a9796b19a41a30b2b432f90521db4fb361385ee7717234",
    ),
)


@dataclass(frozen=True, slots=True)
class TargetVerdict:
    """What is known of the hardware that an engine runs on; goes into `/system-info`, log and golden evaluation.

    Attributes:
        target: `sm_90` and the like, several joined by a comma where devices differ, or `cpu`.
        forced: an operator started on an unsupported target all the same.
    """

    engine: str
    target: str
    status: TargetStatus
    reason: str
    evidence: tuple[Evidence, ...] = ()
    forced: bool = False

    @property
    def supported(self) -> bool:
        return self.status is TargetStatus.SUPPORTED

    def as_dict(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "target": self.target,
            "status": self.status.value,
            "supported": self.supported,
            "reason": self.reason,
            "evidence": [item.as_dict() for item in self.evidence],
            "forced": self.forced,
        }


def target_of(capability: str) -> str:
    """`sm_90` for the compute capability `9.0`. Anything that is no such number gives a target that no table holds."""
    return f"sm_{capability.strip().replace('.', '')}"


def judge_targets(
    engine: str,
    capabilities: Collection[str],
    *,
    forced: bool = False,
    evidence: Iterable[Evidence] = EVIDENCE,
) -> TargetVerdict:
    """The verdict on devices of these compute capabilities (`9.0`); none: the CPU. The worst device decides."""
    if not capabilities:
        return TargetVerdict(engine, CPU, TargetStatus.CPU, "no accelerator: for tests and the quickstart only")
    evidence = tuple(evidence)
    targets = sorted({target_of(capability) for capability in capabilities})
    found = [_judge(engine, target, evidence) for target in targets]
    order = [TargetStatus.UNSUPPORTED, TargetStatus.UNPROVEN, TargetStatus.SUPPORTED]
    worst = min(found, key=lambda verdict: order.index(verdict.status))
    return TargetVerdict(
        engine,
        ",".join(targets),
        worst.status,
        worst.reason,
        tuple(item for verdict in found for item in verdict.evidence),
        forced=forced and worst.status is TargetStatus.UNSUPPORTED,
    )


def _judge(engine: str, target: str, evidence: tuple[Evidence, ...]) -> TargetVerdict:
    if target not in TARGETS:
        reason = f"{target} is none of the targets {', '.join(TARGETS)}"
        return TargetVerdict(engine, target, TargetStatus.UNSUPPORTED, reason)
    known = tuple(item for item in evidence if item.engine == engine and item.target == target)
    # A refusal stays on record until the table says that a later run passed: the last entry decides.
    if known and known[-1].outcome == "failed":
        reason = f"the {engine} engine failed on {target}: {known[-1].file}"
        return TargetVerdict(engine, target, TargetStatus.UNSUPPORTED, reason, known)
    if any(item.accepted for item in known):
        reason = f"{TARGETS[target]}: accepted with the {engine} engine"
        return TargetVerdict(engine, target, TargetStatus.SUPPORTED, reason, known)
    shown = "; shown so far: " + "; ".join(item.proves for item in known) if known else ""
    reason = f"{TARGETS[target]}: no accepted run of the {engine} engine on record{shown}"
    return TargetVerdict(engine, target, TargetStatus.UNPROVEN, reason, known)
