"""What is fetched from the Hub at run time, at which revision, and which file proves that a token may have it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Asset:
    """Args:
    revision: 40 hex; empty when no pin is known here, and then the asset cannot be used until one is given.
    gated: whether a licence has to be accepted first. Then `probe_file` names a payload file to ask for.
    """

    repo: str
    revision: str
    gated: bool
    probe_file: str = ""

    @property
    def terms(self) -> str:
        """Where the licence is read and accepted."""
        return f"https://huggingface.co/{self.repo}"


# Source of both pins and of the probe file: wire baseline 3, `health access`; rulings, generator 16.
NANO = Asset("nvidia/Cosmos3-Nano", "411f42a8fdfb8c5b2583cb8786e0938f49796eaa", gated=False)
GUARDRAIL1 = Asset(
    "nvidia/Cosmos-Guardrail1",
    "d6d4bfa899a71454a700907664f3e88f503950cf",
    gated=True,
    probe_file="video_content_safety_filter/safety_filter.pt",
)
# Of the diffusers engine (source: rulings, generator 16). No page of the spec and no public source at hand names a
# reviewed revision of it: the operator gives one (`--guardrail-revision`).
GUARDRAIL_1_0 = Asset("nvidia/Cosmos-1.0-Guardrail", "", gated=True, probe_file="face_blur_filter/Resnet50_Final.pth")
# The text classifier of both engines. The revision is the one that several independent public projects pin; like any
# other it is proved by the Hub's hashes when it is fetched.
QWEN_GUARD = Asset("Qwen/Qwen3Guard-Gen-0.6B", "fada3b2f655b89601929198343c94cd2f64d93cc", gated=False)
# Asset rows of `health access --capability NAME`.
CAPABILITIES: dict[str, tuple[Asset, ...]] = {"cosmos3": (NANO, GUARDRAIL1)}
