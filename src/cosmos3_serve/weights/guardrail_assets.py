"""Everything that the guardrails need on disk, had and proved before anything is started.

That is the entitlement, the word lists, the face filter, the text classifier and the tokenizer data. One thing missing
or altered refuses the start.
"""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path

from cosmos3_serve.errors import GuardrailsUnavailable
from cosmos3_serve.settings import Engine
from cosmos3_serve.weights.access import AccessState, probe
from cosmos3_serve.weights.assets import GUARDRAIL1, GUARDRAIL_1_0, QWEN_GUARD, Asset
from cosmos3_serve.weights.hub import HubProblem, Proved, prove_asset
from cosmos3_serve.weights.hub_env import Hub
from cosmos3_serve.weights.manifest import HashCache
from cosmos3_serve.weights.nltk_data import export, materialize
from cosmos3_serve.weights.payload import PayloadProblem

WORDS = "blocklist/custom"
EXACT = "blocklist/exact_match"
FACES = "face_blur_filter/Resnet50_Final.pth"
OPT_OUT = "or start with --no-guardrails, which is recorded in every result"

_AGAIN = "remove this revision from the Hub cache and start again with access"
_REMEDIES = {
    "empty": "start once without HF_HUB_OFFLINE and with an entitled HF_TOKEN, or mount the cache that was filled so",
    "incomplete": "start once without HF_HUB_OFFLINE and with an entitled HF_TOKEN: what lacks is fetched then",
    "altered": _AGAIN,
    "unverified": "start once without HF_HUB_OFFLINE: the check needs the Hub's hashes once",
    "manifest": "remove cosmos3-payload/ from HF_HOME and start again with access",
    "denied": "accept the licence at https://huggingface.co/{repo} and set HF_TOKEN of that account",
    "not_found": "check HF_ENDPOINT, the revision, and that the account may see the repository",
    "offline": "start once without HF_HUB_OFFLINE and with an entitled HF_TOKEN, or mount the cache that was filled so",
    "unreachable": "check the network, the proxy and HF_ENDPOINT",
    "rate_limited": "try again later",
    "failed": "try again later",
    "cache": "set HF_HOME or NPA_MODEL_CACHE_DIR to a writable folder with enough space",
}


@dataclass(frozen=True, slots=True)
class GuardrailFiles:
    """What was proved, and where it lies. Snapshots are directories of the Hub's cache.

    Args:
        entitlement: `granted` by the Hub just now, or `offline`: it was when the files were fetched.
    """

    engine: Engine
    repo: str
    revision: str
    snapshot: Path
    nltk_data: Path
    text_repo: str
    text_revision: str
    text_snapshot: Path
    entitlement: str
    assets: tuple[Proved, ...] = ()


def guardrail_asset(engine: Engine, revision: str | None) -> Asset:
    """The guardrail repository of an engine at its pin, or at the operator's.

    Raises:
        GuardrailsUnavailable: `guardrail_revision_missing`: no pin is known for this engine and none was given.
    """
    if engine == "framework":
        return GUARDRAIL1
    if not revision:
        raise GuardrailsUnavailable(
            f"no revision of {GUARDRAIL_1_0.repo} is pinned here, and none was given",
            code="guardrail_revision_missing",
            remedy=f"pass the commit that you reviewed: --guardrail-revision <40 hex>; {OPT_OUT}",
        )
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise GuardrailsUnavailable(
            "--guardrail-revision is no commit: a branch or tag is no pin",
            code="guardrail_revision_missing",
            remedy="pass 40 lower-case hex digits",
        )
    return replace(GUARDRAIL_1_0, revision=revision)


def prove_guardrails(
    engine: Engine, *, revision: str | None, cache_dir: Path, environ: MutableMapping[str, str] | None = None
) -> GuardrailFiles:
    """Ask for the entitlement, fetch what lacks, check every byte, make the tokenizer data and export `NLTK_DATA`.

    Blocks; call it before NLTK is imported. Offline nothing is asked: then every file must be there and match the
    manifest of the fetch that was entitled. A token is demanded either way.

    Raises:
        GuardrailsUnavailable: codes `access_*` (the probe), `guardrail_revision_missing`, `guardrail_cache_empty`,
            `guardrail_cache_incomplete`, `guardrail_cache_altered`, `guardrail_cache_unverified`,
            `guardrail_cache_manifest`, `guardrail_fetch_*`, `guardrail_content_missing`, `guardrail_tokenizer_*`.
    """
    environ = os.environ if environ is None else environ
    hub = Hub.from_environ(environ)
    asset = guardrail_asset(engine, revision)
    access = probe(asset, hub.token, hub.endpoint, offline=hub.offline and bool(hub.token))
    if access.state is not AccessState.OFFLINE:
        access.require()
    hashes = HashCache(cache_dir / "checkpoint-hashes.json")
    own = _fetched(asset, hub, hashes)
    snapshot = own.snapshot
    for name in (WORDS, EXACT, FACES):
        if not _holds(snapshot / name):
            raise GuardrailsUnavailable(
                f"{asset.repo} at {asset.revision[:12]} has no {name}: nothing would be checked with it",
                code="guardrail_content_missing",
                remedy="pin a revision that has it, and check HF_ENDPOINT",
            )
    text = _fetched(QWEN_GUARD, hub, hashes)
    nltk_data = materialize(asset, hub, hashes)
    export(nltk_data, environ)
    return GuardrailFiles(
        engine=engine,
        repo=asset.repo,
        revision=asset.revision,
        snapshot=snapshot,
        nltk_data=nltk_data,
        text_repo=QWEN_GUARD.repo,
        text_revision=QWEN_GUARD.revision,
        text_snapshot=text.snapshot,
        entitlement="granted" if access.granted else "offline",
        assets=(own, text),
    )


def _fetched(asset: Asset, hub: Hub, hashes: HashCache) -> Proved:
    try:
        return prove_asset(asset, hub, hashes)
    except PayloadProblem as problem:
        kind, code, detail = problem.kind, f"guardrail_cache_{problem.kind}", problem.detail
    except HubProblem as problem:
        empty = problem.kind == "offline"
        kind, code = problem.kind, "guardrail_cache_empty" if empty else f"guardrail_fetch_{problem.kind}"
        detail = problem.detail
    raise GuardrailsUnavailable(detail, code=code, remedy=_REMEDIES[kind].format(repo=asset.repo)) from None


def _holds(path: Path) -> bool:
    """A file with something in it, or a folder with such a file."""
    files = [path] if path.is_file() else [p for p in path.iterdir() if p.is_file()] if path.is_dir() else []
    return any(file.stat().st_size > 0 for file in files)
