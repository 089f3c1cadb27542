"""`health preflight`: what must hold before anything is provisioned, asked at once and within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from cosmos3_serve.checks import hf, image, ngc, s3
from cosmos3_serve.checks.registry import ImageRef
from cosmos3_serve.checks.report import Report, Row, Status, make_report, refuse_both
from cosmos3_serve.errors import InputError, UsageError

CHECKS = (hf.NAME, ngc.NAME, s3.NAME, image.NAME)
ALL = "all"
TIMEOUT_S = 30.0

Check = Callable[[], Awaitable[Row]]


def parse_checks(text: str) -> tuple[str, ...]:
    """`hf,s3` -> the names, in their own order and once each; `all` or nothing names every one.

    Raises:
        UsageError: an unknown name.
    """
    names = _words(text) or [ALL]
    unknown = [name for name in names if name not in (*CHECKS, ALL)]
    if unknown:
        raise UsageError(f"unknown check {unknown[0][:40]!r}", remedy=f"use {', '.join(CHECKS)} or {ALL}")
    return CHECKS if ALL in names else tuple(dict.fromkeys(names))


def asked_by_name(name: str, text: str) -> bool:
    """Whether `--checks` names this very check, and not only `all`."""
    return name in _words(text)


def _words(text: str) -> list[str]:
    return [word for word in (part.strip().lower() for part in text.split(",")) if word]


async def preflight(
    checks: Sequence[str],
    environ: Mapping[str, str],
    *,
    offline: bool = False,
    strict: bool = False,
    warn_only: bool = False,
    s3_uri: str = "",
    images: Sequence[ImageRef] = (),
    timeout_s: float = TIMEOUT_S,
) -> Report:
    """Run the named checks concurrently; each takes at most about `timeout_s` seconds. Nothing secret is in the report.

    Args:
        images: what the check `image` asks for, one row each; none: one row that says SKIP.

    Raises:
        UsageError: `strict` and `warn_only` at once.
    """
    refuse_both(strict, warn_only)
    table: dict[str, Check] = {
        hf.NAME: partial(hf.check_hf, environ, offline=offline, timeout_s=timeout_s),
        ngc.NAME: partial(ngc.check_ngc, environ, offline=offline, timeout_s=timeout_s),
        s3.NAME: partial(s3.check_s3, environ, offline=offline, timeout_s=timeout_s, location=s3_uri),
    }
    run: list[tuple[str, Check]] = []
    for name in checks:
        if name != image.NAME:
            run.append((name, table[name]))
            continue
        ask = partial(image.check_image, environ=environ, offline=offline, timeout_s=timeout_s)
        run += [(name, partial(ask, one)) for one in images] or [(name, image.not_named)]
    rows = await asyncio.gather(*(guarded(name, check) for name, check in run))
    return make_report(rows, strict=strict, warn_only=warn_only)


async def guarded(name: str, check: Check) -> Row:
    """A check that cannot be made at all is a row like any other: one broken variable hides no other result."""
    try:
        return await check()
    except InputError as error:
        return Row(name, Status.FAIL, error.detail, error.remedy)
