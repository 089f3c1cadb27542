"""`health access`: may this token fetch what a capability needs? One row per asset, all asked at the same time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import get_args

from cosmos3_serve.checks.report import Report, Row, Status, make_report, refuse_both
from cosmos3_serve.errors import UsageError
from cosmos3_serve.settings import Engine
from cosmos3_serve.weights.access import Access, AccessState, probe
from cosmos3_serve.weights.assets import NANO, Asset, assets_of
from cosmos3_serve.weights.hub_env import Hub

TIMEOUT_S = 10.0
CAPABILITIES = ("cosmos3",)
ENGINES: tuple[Engine, ...] = get_args(Engine)
ENGINE_ENV = "COSMOS3_ENGINE"
REVISION_ENV = "COSMOS3_GUARDRAIL_REVISION"
NGC_ROW = Row("ngc", Status.PASS, "this capability needs nothing of NGC")

_STATUS = {
    AccessState.GRANTED: Status.PASS,
    AccessState.OFFLINE: Status.SKIP,
    AccessState.DENIED: Status.FAIL,
    AccessState.TOKEN_MISSING: Status.FAIL,
    AccessState.TOKEN_REFUSED: Status.FAIL,
    AccessState.UNPINNED: Status.FAIL,
    AccessState.NOT_FOUND: Status.FAIL,
}  # every other state leaves the question open


def engine_assets(engine: str, environ: Mapping[str, str]) -> tuple[Asset, ...]:
    """What a guarded start of this engine loads from the Hub; empty: `COSMOS3_ENGINE`, else the framework's.

    Raises:
        UsageError: no such engine, or `COSMOS3_GUARDRAIL_REVISION` is no commit.
    """
    name = engine.strip() or environ.get(ENGINE_ENV, "").strip() or "framework"
    chosen = next((one for one in ENGINES if one == name), None)
    if chosen is None:
        raise UsageError(f"unknown engine {name[:40]!r}", remedy=f"use {' or '.join(ENGINES)}")
    revision = environ.get(REVISION_ENV, "").strip()
    if chosen == "diffusers" and revision and not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise UsageError(f"{REVISION_ENV} is no commit", remedy="set it to 40 lower-case hex digits")
    found = assets_of(chosen, guardrails=True, guardrail_revision=revision or None)
    return tuple(sorted(found, key=lambda asset: asset is not NANO))  # the checkpoint first, as readers expect


async def access(
    capability: str,
    environ: Mapping[str, str],
    *,
    engine: str = "",
    offline: bool = False,
    strict: bool = False,
    warn_only: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> Report:
    """The NGC row, then one per asset, each within about twice `timeout_s` seconds; nothing is downloaded.

    Args:
        engine: whose assets are asked for; empty: `COSMOS3_ENGINE`, else the framework's.

    Raises:
        UsageError: unknown capability or engine, `HF_ENDPOINT` that is no address, or `strict` with `warn_only`.
    """
    refuse_both(strict, warn_only)
    if capability not in CAPABILITIES:
        raise UsageError(f"unknown capability {capability[:40]!r}", remedy=f"use {', '.join(CAPABILITIES)}")
    assets = engine_assets(engine, environ)
    hub = Hub.from_environ(environ)

    async def ask(asset: Asset) -> Row:
        quiet = offline or hub.offline
        return _row(await asyncio.to_thread(probe, asset, hub.token, hub.endpoint, offline=quiet, timeout_s=timeout_s))

    rows = await asyncio.gather(*map(ask, assets))
    return make_report([NGC_ROW, *rows], strict=strict, warn_only=warn_only)


def _row(found: Access) -> Row:
    asset = found.asset
    details = [asset.purpose, f"revision {asset.revision or 'not pinned'}", "gated" if asset.gated else "not gated"]
    if asset.probe_file:
        details.append(f"asked for {asset.probe_file}")
    if found.status is not None:
        details.append(f"HTTP {found.status}")
    status = _STATUS.get(found.state, Status.WARN)
    summary = "not asked (offline)" if status is Status.SKIP else found.detail
    return Row(asset.repo, status, summary, "" if status is Status.SKIP else found.remedy, tuple(details))
