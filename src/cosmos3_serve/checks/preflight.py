"""`health preflight`: what must hold before anything is provisioned, asked at once and within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from cosmos3_serve.checks import hf, ngc, s3
from cosmos3_serve.checks.report import Report, Row, Status, make_report, refuse_both
from cosmos3_serve.errors import InputError, UsageError

CHECKS = (hf.NAME, ngc.NAME, s3.NAME)
ALL = "all"
TIMEOUT_S = 30.0

Check = Callable[[], Awaitable[Row]]


def parse_checks(text: str) -> tuple[str, ...]:
    """`hf,s3` -> the names, in their own order and once each; `all` or nothing names every one.

    Raises:
        UsageError: an unknown name.
    """
    names = [name for name in (word.strip().lower() for word in text.split(",")) if name] or [ALL]
    unknown = [name for name in names if name not in (*CHECKS, ALL)]
    if unknown:
        raise UsageError(f"unknown check {unknown[0][:40]!r}", remedy=f"use {', '.join(CHECKS)} or {ALL}")
    return CHECKS if ALL in names else tuple(dict.fromkeys(names))


async def preflight(
    checks: Sequence[str],
    environ: Mapping[str, str],
    *,
    offline: bool = False,
    strict: bool = False,
    warn_only: bool = False,
    s3_uri: str = "",
    timeout_s: float = TIMEOUT_S,
) -> Report:
    """Run the named checks concurrently; each takes at most about `timeout_s` seconds. Nothing secret is in the report.

    Raises:
        UsageError: `strict` and `warn_only` at once.
    """
    refuse_both(strict, warn_only)
    table: dict[str, Check] = {
        hf.NAME: partial(hf.check_hf, environ, offline=offline, timeout_s=timeout_s),
        ngc.NAME: partial(ngc.check_ngc, environ, offline=offline, timeout_s=timeout_s),
        s3.NAME: partial(s3.check_s3, environ, offline=offline, timeout_s=timeout_s, location=s3_uri),
    }
    rows = await asyncio.gather(*(guarded(name, table[name]) for name in checks))
    return make_report(rows, strict=strict, warn_only=warn_only)


async def guarded(name: str, check: Check) -> Row:
    """A check that cannot be made at all is a row like any other: one broken variable hides no other result."""
    try:
        return await check()
    except InputError as error:
        return Row(name, Status.FAIL, error.detail, error.remedy)
