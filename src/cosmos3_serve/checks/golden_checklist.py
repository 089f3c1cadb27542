"""What one image on one GPU target must have shown before it is accepted, and which of it a golden run has shown.

By docs/contract.md 8: import, start, `/health` or a CUDA probe alone are not acceptance, so they are not on the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

SHOWN: Final = "shown"
NOT_SHOWN: Final = "not shown"
OUTSIDE: Final = "outside this run"

# What no service can say of itself, with what to do.
OUTSIDE_ITEMS: Final[Mapping[str, str]] = {
    "image scans": "scan the exact digest: its layers (containers/scan.py), its SBOM, its vulnerabilities",
    "anonymous pull": "pull the exact digest without credentials, on a machine that has none",
}


def checklist(result: Mapping[str, Any], target: str, publication: str) -> list[dict[str, str]]:
    """One row per requirement: `item`, `state` (`shown`, `not shown`, `outside this run`), `why`.

    Args:
        result: a verdict (`golden_verdict.verdict`).
        target: the target that was asked for; empty: none.
        publication: where the batch was published.
    """
    found = (result.get("target") or {}).get("target", "unknown")
    guarded = result["guardrails"]["configured"] is True and result["guardrails"]["applied"]
    failed = list(result["failures"])
    rows = [{"item": item, "state": OUTSIDE, "why": why} for item, why in OUTSIDE_ITEMS.items()]

    def row(item: str, shown: bool, yes: str, no: str) -> None:
        rows.append({"item": item, "state": SHOWN if shown else NOT_SHOWN, "why": yes if shown else no})

    row(
        "the device, by /system-info",
        bool(target) and found == target,
        f"the service runs on {found}",
        f"the service runs on {found}; " + (f"{target} was asked for" if target else "no --target was given"),
    )
    row(
        "guarded readiness",
        guarded and not failed,
        "/ready was 200 with guardrails configured, and every sample's record says that they were applied",
        "; ".join(failed) or "guardrails were off, or no record says that they were applied",
    )
    row(
        "a batch of two with structured outputs",
        not failed and (result["batch_size"] or 0) >= 2,
        "one completed publication, bound sample by sample",
        "; ".join(failed) or "the batch was of another size",
    )
    row(
        "two decodable artifacts",
        not failed and len(result["images"]) >= 2,
        "their bytes have the declared hashes, and PIL verified them",
        "; ".join(failed) or "fewer than two images were verified",
    )
    row(
        "request, response and provenance in S3",
        not failed and publication.startswith("s3://"),
        "provenance.json was read back from S3; it is written last, after the two others were read back",
        "; ".join(failed) or "published to a local folder: give --publish s3://bucket/prefix/",
    )
    return rows
