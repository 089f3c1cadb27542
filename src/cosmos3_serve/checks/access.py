"""`health access`: may this token fetch what a capability needs? One row per asset, all asked at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from cosmos3_serve.checks.report import Report, Row, Status, make_report, refuse_both
from cosmos3_serve.errors import UsageError
from cosmos3_serve.weights.access import Access, AccessState, probe
from cosmos3_serve.weights.assets import CAPABILITIES, Asset
from cosmos3_serve.weights.hub_env import Hub

TIMEOUT_S = 10.0
NGC_ROW = Row("ngc", Status.PASS, "this capability needs nothing of NGC")

_STATUS = {
    AccessState.GRANTED: Status.PASS,
    AccessState.OFFLINE: Status.SKIP,
    AccessState.DENIED: Status.FAIL,
    AccessState.TOKEN_REFUSED: Status.FAIL,
    AccessState.UNPINNED: Status.FAIL,
    AccessState.NOT_FOUND: Status.FAIL,
}  # every other state leaves the question open


async def access(
    capability: str,
    environ: Mapping[str, str],
    *,
    offline: bool = False,
    strict: bool = False,
    warn_only: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> Report:
    """The NGC row, then one per asset, each within about twice `timeout_s` seconds; nothing is downloaded.

    Raises:
        UsageError: unknown capability, `HF_ENDPOINT` that is no address, or `strict` with `warn_only`.
    """
    refuse_both(strict, warn_only)
    if capability not in CAPABILITIES:
        raise UsageError(f"unknown capability {capability[:40]!r}", remedy=f"use {', '.join(CAPABILITIES)}")
    hub = Hub.from_environ(environ)

    async def ask(asset: Asset) -> Row:
        quiet = offline or hub.offline
        return _row(await asyncio.to_thread(probe, asset, hub.token, hub.endpoint, offline=quiet, timeout_s=timeout_s))

    rows = await asyncio.gather(*map(ask, CAPABILITIES[capability]))
    return make_report([NGC_ROW, *rows], strict=strict, warn_only=warn_only)


def _row(found: Access) -> Row:
    asset = found.asset
    details = [f"revision {asset.revision or 'not pinned'}", "gated" if asset.gated else "not gated"]
    if asset.probe_file:
        details.append(f"asked for {asset.probe_file}")
    if found.status is not None:
        details.append(f"HTTP {found.status}")
    status = _STATUS.get(found.state, Status.WARN)
    summary = "not asked (offline)" if status is Status.SKIP else found.detail
    return Row(asset.repo, status, summary, "" if status is Status.SKIP else found.remedy, tuple(details))
