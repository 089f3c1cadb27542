"""What a start would find in the Hub's cache and what it would have to fetch, told without fetching anything.

What is in the cache is verified as a start verifies it. For what is not, the Hub is asked whether it may be fetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cosmos3_serve.errors import CheckpointUnavailable, Cosmos3Error, GuardrailsUnavailable
from cosmos3_serve.settings import Engine
from cosmos3_serve.weights.access import Access, AccessState, probe
from cosmos3_serve.weights.assets import NANO, Asset, assets_of
from cosmos3_serve.weights.checkpoint import TINY, hub_name, resolve_checkpoint
from cosmos3_serve.weights.guardrail_assets import prove_guardrails
from cosmos3_serve.weights.hub import prove_checkpoint_asset
from cosmos3_serve.weights.hub_env import Hub
from cosmos3_serve.weights.manifest import HashCache
from cosmos3_serve.weights.upstream_files import needed_assets

# A start with a network fetches what these say is missing; every other refusal stands.
_FETCHABLE = frozenset({"offline", "empty", "incomplete", "unverified"})
VERIFIED, TO_FETCH, TO_BUILD = "verified", "to fetch", "to build"
ACCESS_CODES = {
    AccessState.DENIED: "checkpoint_access_denied",
    AccessState.TOKEN_MISSING: "checkpoint_access_denied",
    AccessState.TOKEN_REFUSED: "checkpoint_access_denied",
    AccessState.NOT_FOUND: "checkpoint_not_found",
    AccessState.UNREACHABLE: "checkpoint_offline",
}


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Args:
    state: verified (in place, every byte checked), to fetch, or to build.
    path: where a verified checkpoint lies.
    """

    name: str
    state: str
    detail: str = ""
    path: Path | None = None

    def as_dict(self) -> dict[str, str]:
        return {"name": self.name, "state": self.state, "detail": self.detail}


def foresee_checkpoint(text: str, cache_dir: Path, environ: Mapping[str, str], *, framework: bool = False) -> Foreseen:
    """What a start would do about its checkpoint.

    Raises:
        CheckpointUnavailable, UsageError: a start would be refused; codes as `resolve_checkpoint`.
    """
    if text.strip() == TINY and not framework:
        return Foreseen(TINY, TO_BUILD, "random weights, built or verified at the start")
    try:
        found = resolve_checkpoint(text, cache_dir, environ=_offline(environ), framework=framework)
    except CheckpointUnavailable as refused:
        named = hub_name(text)
        hub = Hub.from_environ(environ)
        if named is None or hub.offline or not _fetchable(refused):
            raise
        asset = Asset(named[0], named[1] or "main", gated=False, purpose=NANO.purpose)
        _require(asset, probe(asset, hub.token, hub.endpoint))
        return Foreseen(asset.repo, TO_FETCH, f"revision {asset.revision}")
    return Foreseen(found.id, VERIFIED, f"revision {found.revision}, weights {found.weights}", found.path)


def foresee_guardrails(
    engine: Engine, *, revision: str | None, cache_dir: Path, environ: Mapping[str, str]
) -> list[Foreseen]:
    """What a start would do about the guardrails' files.

    Raises:
        GuardrailsUnavailable: a start would be refused; codes as `prove_guardrails`.
    """
    hub = Hub.from_environ(environ)
    other = assets_of(engine, guardrails=False, checkpoint=None)
    every = assets_of(engine, guardrails=True, guardrail_revision=revision, checkpoint=None)
    guards = [asset for asset in every if asset not in other]
    try:
        prove_guardrails(engine, revision=revision, cache_dir=cache_dir, environ=_offline(environ))
        state = VERIFIED
    except GuardrailsUnavailable as refused:
        if hub.offline or not _fetchable(refused):
            raise
        state = TO_FETCH
    if not hub.offline:
        for asset in guards:
            probe(asset, hub.token, hub.endpoint).require()
    return [Foreseen(asset.repo, state, f"{asset.purpose}, revision {asset.revision}") for asset in guards]


def foresee_upstream(found: Foreseen, cache_dir: Path, environ: Mapping[str, str]) -> list[Foreseen]:
    """What a start of the framework engine would do about the files that it loads besides the checkpoint `found`.

    Raises:
        CheckpointUnavailable: a start would be refused.
    """
    hub = Hub.from_environ(environ)
    hashes = HashCache(cache_dir / "checkpoint-hashes.json")
    rows = []
    for asset in needed_assets(found.name, found.path):
        try:
            prove_checkpoint_asset(asset, replace(hub, offline=True), hashes)
            state = VERIFIED
        except CheckpointUnavailable as refused:
            if hub.offline or not _fetchable(refused):
                raise
            _require(asset, probe(asset, hub.token, hub.endpoint))
            state = TO_FETCH
        rows.append(Foreseen(asset.repo, state, f"{asset.purpose}, revision {asset.revision}"))
    return rows


def _fetchable(refused: Cosmos3Error) -> bool:
    return refused.stable_code.rpartition("_")[2] in _FETCHABLE


def _require(asset: Asset, access: Access) -> None:
    if not access.granted:
        code = ACCESS_CODES.get(access.state)
        raise CheckpointUnavailable(f"{asset.purpose}: {access.detail}", code=code, remedy=access.remedy)


def _offline(environ: Mapping[str, str]) -> dict[str, str]:
    return {**environ, "HF_HUB_OFFLINE": "1"}
