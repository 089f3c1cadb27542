"""What is fetched from the Hub at run time, at which revision, and which file proves that a token may have it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cosmos3_serve.settings import Engine


@dataclass(frozen=True, slots=True)
class Asset:
    """Args:
    revision: 40 hex; empty when no pin is known here, and then the asset cannot be used until one is given.
    gated: whether a licence has to be accepted first. Then `probe_file` names a payload file to ask for.
    purpose: what the engine needs it for, in a few words.
    files: patterns (fnmatch over the whole path) of the files that are fetched; empty: those of a checkpoint.
    """

    repo: str
    revision: str
    gated: bool
    probe_file: str = ""
    purpose: str = ""
    files: tuple[str, ...] = ()

    @property
    def terms(self) -> str:
        """Where the licence is read and accepted."""
        return f"https://huggingface.co/{self.repo}"


NANO = Asset("nvidia/Cosmos3-Nano", "411f42a8fdfb8c5b2583cb8786e0938f49796eaa", gated=False, purpose="checkpoint")
GUARDRAIL1 = Asset(
    "nvidia/Cosmos-Guardrail1",
    "d6d4bfa899a71454a700907664f3e88f503950cf",
    gated=True,
    probe_file="video_content_safety_filter/safety_filter.pt",
    purpose="word lists and face blur",
    files=("blocklist/*", "face_blur_filter/*"),
)
# Of the diffusers engine. No public source names a reviewed revision of it: the operator gives one
# (`--guardrail-revision`).
GUARDRAIL_1_0 = Asset(
    "nvidia/Cosmos-1.0-Guardrail",
    "",
    gated=True,
    probe_file="face_blur_filter/Resnet50_Final.pth",
    purpose="word lists and face blur",
    files=("blocklist/*", "face_blur_filter/*"),
)
# The text classifier of both engines. The revision is the one that several independent public projects pin; like any
# other it is proved by the Hub's hashes when it is fetched.
QWEN_GUARD = Asset(
    "Qwen/Qwen3Guard-Gen-0.6B",
    "fada3b2f655b89601929198343c94cd2f64d93cc",
    gated=False,
    purpose="text classifier",
)
# The framework's video autoencoder and its pin are in upstream's own registry of checkpoints.
WAN_VAE = Asset(
    "Wan-AI/Wan2.2-TI2V-5B",
    "921dbaf3f1674a56f47e83fb80a34bac8a8f203e",
    gated=False,
    probe_file="Wan2.2_VAE.pth",
    purpose="video autoencoder",
    files=("Wan2.2_VAE.pth",),
)
# The framework's audio autoencoder: upstream asks for the branch `main` of this repository, we pin a commit.
AVAE = Asset(
    NANO.repo,
    NANO.revision,
    gated=False,
    probe_file="sound_tokenizer/config.json",
    purpose="audio autoencoder",
    files=("sound_tokenizer/*",),
)


def assets_of(
    engine: Engine, *, guardrails: bool, guardrail_revision: str | None = None, checkpoint: Asset | None = NANO
) -> tuple[Asset, ...]:
    """Every asset that a start of `engine` loads from the Hub, in the order in which it is proved.

    Args:
        guardrail_revision: of the diffusers engine's guardrail repository; without one its row has no revision.
        checkpoint: None where the checkpoint is a local directory.
    """
    found: list[Asset] = []
    if guardrails:
        own = GUARDRAIL1 if engine == "framework" else replace(GUARDRAIL_1_0, revision=guardrail_revision or "")
        found += [own, QWEN_GUARD]
    if checkpoint is not None:
        found.append(checkpoint)
    if engine == "framework":
        found += [WAN_VAE, AVAE]
    return tuple(found)
