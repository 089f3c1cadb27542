"""What a golden run proved, from what was seen of it: PASS for the production alone, else exactly what ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from cosmos3_serve.checks.golden import FAIL, PASS, QUALIFIERS, samples
from cosmos3_serve.contract.targets import TargetStatus, TargetVerdict, judge_targets
from cosmos3_serve.contract.wire import FRAMEWORK_BACKEND, FRAMEWORK_REVISION
from cosmos3_serve.errors import Refusal
from cosmos3_serve.weights.blockworld import BLOCKWORLD

MIN_BATCH = 2


@dataclass(frozen=True, slots=True)
class Medium:
    """One published picture (one frame) or clip: it decodes, and its bytes equal the declared hash.

    Attributes:
        fault: what it shows instead of the block-world scene that was asked for; None: just that, or nothing was asked
            for that can be measured.
    """

    path: str
    width: int
    height: int
    frames: int
    sha256: str
    fault: str | None = None

    @property
    def sample(self) -> str:
        return PurePosixPath(self.path).parent.name


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that a verdict rests on.

    Attributes:
        ready, system: bodies of `/ready` and `/system-info`, as sent; a baseline service leaves our fields out.
        manifest: `provenance.json` as published.
        media: those that could be verified.
        guardrails: what was asked for, None where a running service was taken as it is.
    """

    ready: Mapping[str, Any]
    system: Mapping[str, Any]
    manifest: Mapping[str, Any]
    media: Sequence[Medium]
    guardrails: bool | None = None

    @property
    def names(self) -> list[str]:
        """Of the samples that were asked for."""
        return [sample["name"] for sample in samples(self.ready.get("weights"))]


def engine_of(ready: Mapping[str, Any]) -> str:
    """`framework` only for the pinned revision behind the framework's own backend name."""
    pinned = ready.get("framework_revision") == FRAMEWORK_REVISION and ready.get("backend") == FRAMEWORK_BACKEND
    named = ready.get("engine") or ("framework" if pinned else "unknown")
    return str(named) if named != "framework" or pinned else "unknown"


def target_of_service(ready: Mapping[str, Any], system: Mapping[str, Any]) -> TargetVerdict | None:
    """The hardware that the service reports, judged here and not by its own claim; None where it does not say."""
    engine = engine_of(ready)
    told = system.get("engine")
    if isinstance(told, Mapping) and isinstance(told.get("capabilities"), list):
        used = [str(item) for item in told["capabilities"]]
    else:
        accelerators = system.get("accelerators")
        if not isinstance(accelerators, list) or not accelerators:
            return None
        used = [str(item.get("compute_capability", "")) for item in accelerators if isinstance(item, Mapping)]
    forced = bool(ready.get("target_forced"))
    return judge_targets(engine, used, forced=forced)


def require_target(wanted: str, found: TargetVerdict | None) -> None:
    """
    Raises:
        Refusal: code `wrong_target`: the service runs on something else, or does not say on what.
    """
    have = found.target if found else "unknown"
    if wanted != have:
        raise Refusal(
            f"the golden evaluation was asked for {wanted}, and the service runs on {have}",
            code="wrong_target",
            remedy=f"run it on a {wanted} device; evidence of one target says nothing about another",
        )


def qualifiers(seen: Seen, found: TargetVerdict | None) -> list[str]:
    """Why this is less than the production's PASS, as keys of `QUALIFIERS`, in that order."""
    ready = seen.ready
    weights = seen.manifest.get("weights")
    holds = {
        "DIFFUSERS": engine_of(ready) != "framework",
        "RANDOM": weights == "random",
        "BLOCKWORLD": weights == "blockworld",
        "WEIGHTS_UNKNOWN": weights not in ("random", "blockworld", "pretrained"),
        "UNGUARDED": ready.get("guardrails") is not True,
        "GUARDRAILS_UNPROVEN": ready.get("guardrails") is True and not guardrails_applied(seen.manifest),
        "CPU": found is not None and found.status is TargetStatus.CPU,
        "GPU_UNKNOWN": found is None,
        "GPU_FORCED": found is not None and found.status is TargetStatus.UNSUPPORTED,
    }
    return [name for name in QUALIFIERS if holds[name]]


def guardrails_applied(manifest: Mapping[str, Any], kind: str = "applied") -> bool:
    """Whether every sample's own record says that checks ran on it; `kind` may ask for those of texts or outputs."""
    records = manifest.get("samples")
    if not isinstance(records, list) or len(records) < MIN_BATCH:
        return False
    return all(isinstance(r, Mapping) and (r.get("guardrails") or {}).get(kind) is True for r in records)


def failures(seen: Seen) -> list[str]:
    """Requirements of the smoke that did not hold (docs/contract.md 8); empty when it passed."""
    manifest, ready, names = seen.manifest, seen.ready, seen.names
    found = []
    if manifest.get("status") != "completed":
        found.append(f"the publication is {manifest.get('status')!r}, not completed")
    if manifest.get("batch_size") != len(names):
        found.append(f"batch_size is {manifest.get('batch_size')!r}, not {len(names)}")
    limit = ready.get("max_batch_size")
    if not isinstance(limit, int) or limit < MIN_BATCH:
        found.append(f"max_batch_size is {limit!r}: two samples could never share a batch")
    if manifest.get("guardrails") is not ready.get("guardrails"):
        found.append("the response's guardrails differ from what /ready says")
    if seen.guardrails is not None and ready.get("guardrails") is not seen.guardrails:
        found.append("the service's guardrails are not what was asked for")
    if ready.get("guardrails") is True and ready.get("guardrails_effective") is False:
        found.append("guardrails are configured, but the service says that they are not effective")
    if (manifest.get("weights") == BLOCKWORLD) is not (ready.get("weights") == BLOCKWORLD):
        found.append(f"the weights are {manifest.get('weights')!r}, and /ready says {ready.get('weights')!r}")
    if {medium.sample for medium in seen.media} != set(names) or len(seen.media) < len(names):
        count = f"{len(seen.media)} images and clips were verified"
        found.append(f"{count}, one for each of {len(names)} samples is needed")
    found += [f"{medium.sample}: {medium.fault}" for medium in seen.media if medium.fault]
    return found


def verdict(seen: Seen, trouble: Sequence[str] = ()) -> dict[str, Any]:
    """The result that a golden run prints: `status` is PASS, PASS_<what was less>, or FAIL.

    Args:
        trouble: why there is no publication to judge; then nothing else is asked of it.
    """
    found = list(trouble) or failures(seen)
    hardware = target_of_service(seen.ready, seen.system)
    lacking = qualifiers(seen, hardware)
    waves = [record.get("wave") or {} for record in seen.manifest.get("samples") or []]
    return {
        "status": FAIL if found else "_".join([PASS, *lacking]),
        "failures": found,
        "not_proven": [QUALIFIERS[name] for name in lacking],
        "engine": engine_of(seen.ready),
        "backend": seen.ready.get("backend"),
        "framework_revision": seen.ready.get("framework_revision"),
        "checkpoint": seen.ready.get("checkpoint"),
        "checkpoint_revision": seen.ready.get("checkpoint_revision"),
        "weights": seen.manifest.get("weights", "unknown"),
        "payload_verified": seen.ready.get("payload_verified"),
        "guardrails": {
            "configured": seen.ready.get("guardrails"),
            "applied": guardrails_applied(seen.manifest),
            "texts_applied": guardrails_applied(seen.manifest, "texts_applied"),
            "outputs_applied": guardrails_applied(seen.manifest, "outputs_applied"),
        },
        "target": hardware.as_dict() if hardware else None,
        "devices": [a.get("name") for a in seen.system.get("accelerators") or [] if isinstance(a, Mapping)],
        "driver": seen.system.get("driver"),
        "versions": seen.system.get("versions"),
        "batch_size": seen.manifest.get("batch_size"),
        "max_batch_size": seen.ready.get("max_batch_size"),
        # Two different things, never mixed: who arrived together, and who went through the network together.
        "coalesced": sorted({wave["coalesced"] for wave in waves if wave.get("coalesced")}),
        "inference_batches": sorted({wave["inference_batch"] for wave in waves if wave.get("inference_batch")}),
        "images": [_told(medium) for medium in seen.media if medium.frames == 1],
        "clips": [_told(medium) for medium in seen.media if medium.frames > 1],
        # None: nothing was asked for that pixels can tell.
        "shown": {
            medium.sample: medium.fault is None if seen.ready.get("weights") == BLOCKWORLD else None
            for medium in seen.media
        },
        "request_id": seen.manifest.get("request_id"),
        "server_source_revision": seen.manifest.get("server_source_revision"),
    }


def _told(medium: Medium) -> dict[str, Any]:
    told = {"path": medium.path, "width": medium.width, "height": medium.height, "sha256": medium.sha256}
    return told if medium.frames == 1 else told | {"frames": medium.frames}
