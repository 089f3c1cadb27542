"""A stub Hub with stand-ins for the guardrail repositories: right names, right places, no real words and no weights."""

from __future__ import annotations

from support.hub import Repo

from cosmos3_serve.weights.assets import AVAE, GUARDRAIL1, GUARDRAIL_1_0, NANO, QWEN_GUARD, WAN_VAE

REVISION_1_0 = "5" * 40  # made up for the stub: no reviewed revision of that repository is known here
GUARDRAIL_FILES = {
    "blocklist/custom/words": b"stubword\n",
    "blocklist/exact_match/words": b"stub phrase\n",
    "blocklist/whitelist/words": b"harmless\n",
    "blocklist/nltk_data/tokenizers/punkt_tab/english/collocations.tab": b"stub tokens",
    "face_blur_filter/Resnet50_Final.pth": b"stub, no weights",
    "video_content_safety_filter/safety_filter.pt": b"stub, no weights",
    "README.md": b"card",
}
TEXT_FILES = {"config.json": b"{}", "model.safetensors": b"stub, no weights", "tokenizer.json": b"{}"}


def guardrail_repos() -> dict[str, Repo]:
    return {
        GUARDRAIL1.repo: Repo(GUARDRAIL1.revision, dict(GUARDRAIL_FILES), gated=True),
        GUARDRAIL_1_0.repo: Repo(REVISION_1_0, dict(GUARDRAIL_FILES), gated=True),
        QWEN_GUARD.repo: Repo(QWEN_GUARD.revision, dict(TEXT_FILES)),
    }


def engine_repos() -> dict[str, Repo]:
    """What either engine fetches besides: the checkpoint's card alone, and the framework's autoencoders."""
    nano = {"README.md": b"card", AVAE.probe_file: b"{}"}
    return {NANO.repo: Repo(NANO.revision, nano), WAN_VAE.repo: Repo(WAN_VAE.revision, {WAN_VAE.probe_file: b"stub"})}
