"""`health preflight` and `health access`: checks before anything is provisioned (source: wire baseline section 3)."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import typer

from cosmos3_serve.checks.report import Report
from cosmos3_serve.cli import output
from cosmos3_serve.cli.group import command_group

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Offline = Annotated[bool, typer.Option("--offline", help="Ask nobody; say only what is configured.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="A warning, such as a missing credential, refuses too (exit 3).")
]
WarnOnly = Annotated[bool, typer.Option("--warn-only", help="Exit 0 whatever is found; `ok` still tells.")]


def group() -> typer.Typer:
    """The commands below `cosmos3 health` and `npa workbench health`."""
    text = "Checks before a GPU is provisioned: accounts, storage, entitlement."
    return command_group("health", text, preflight=preflight, access=access)


def register(app: typer.Typer) -> None:
    app.add_typer(group())


def preflight(
    checks: Annotated[str, typer.Option("--checks", help="Comma list of hf, ngc, s3, or all.")] = "all",
    s3_uri: Annotated[
        str, typer.Option("--s3-uri", help="s3://bucket/prefix/ that may be written to (env: NPA_S3_BUCKET).")
    ] = "",
    timeout: Annotated[float, typer.Option("--timeout", min=1, max=600, help="Seconds for each check.")] = 30,
    offline: Offline = False,
    strict: Strict = False,
    warn_only: WarnOnly = False,
    json: Json = False,
) -> int:
    """Ask the Hub, NVIDIA's registry and the object storage whether they work for you.

    The S3 check writes a scratch object, reads it back, tries to overwrite it, lists and deletes it. Exit 3 when a
    check fails; a missing credential is a warning, which --strict turns into a refusal.
    """
    from cosmos3_serve.checks.preflight import parse_checks
    from cosmos3_serve.checks.preflight import preflight as run

    names = parse_checks(checks)
    flags = {"offline": offline, "strict": strict, "warn_only": warn_only}
    return _show(asyncio.run(run(names, os.environ, s3_uri=s3_uri, timeout_s=timeout, **flags)), as_json=json)


def access(
    capability: Annotated[str, typer.Option("--capability", help="What is to be run: cosmos3.")],
    timeout: Annotated[float, typer.Option("--timeout", min=1, max=600, help="Seconds for each question.")] = 10,
    offline: Offline = False,
    strict: Strict = False,
    warn_only: WarnOnly = False,
    json: Json = False,
) -> int:
    """Ask the Hub whether HF_TOKEN may fetch the models and the guardrails; nothing is downloaded.

    A token's presence is no entitlement: the question is put for one exact payload file at the pinned revision.
    """
    from cosmos3_serve.checks.access import access as run

    report = asyncio.run(
        run(capability, os.environ, offline=offline, strict=strict, warn_only=warn_only, timeout_s=timeout)
    )
    return _show(report, as_json=json)


def _show(report: Report, *, as_json: bool) -> int:
    if as_json:
        output.emit(report.as_dict())
    else:
        print("\n".join(report.lines()), flush=True)
    return report.exit_code
