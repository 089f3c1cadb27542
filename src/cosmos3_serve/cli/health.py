"""`health preflight` and `health access`: checks before anything is provisioned."""

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
Strict = Annotated[bool, typer.Option("--strict", help="A warning refuses too (exit 3): nothing may be left unknown.")]
WarnOnly = Annotated[bool, typer.Option("--warn-only", help="Exit 0 whatever is found; `ok` still tells.")]


def group() -> typer.Typer:
    """The commands below `cosmos3 health` and `npa workbench health`."""
    text = "Checks before a GPU is provisioned: accounts, storage, entitlement."
    return command_group("health", text, preflight=preflight, access=access)


def register(app: typer.Typer) -> None:
    app.add_typer(group())


def preflight(
    checks: Annotated[str, typer.Option("--checks", help="Comma list of hf, ngc, s3, image, or all.")] = "all",
    s3_uri: Annotated[
        str, typer.Option("--s3-uri", help="s3://bucket/prefix/ that may be written to (env: NPA_S3_BUCKET).")
    ] = "",
    image: Annotated[
        list[str] | None,
        typer.Option("--image", help="Image by digest, name@sha256:…; may be repeated (env: NPA_TASK_IMAGE)."),
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=1, max=600, help="Seconds for each check.")] = 30,
    offline: Offline = False,
    strict: Strict = False,
    warn_only: WarnOnly = False,
    json: Json = False,
) -> int:
    """Ask the Hub, NVIDIA's registry, the object storage and an image's registry whether they work for you.

    The S3 check writes a scratch object, reads it back, tries to overwrite it, lists and deletes it. The image check
    asks for exact digests, with and without credentials. Exit 3 when a check fails or a required credential is missing.
    """
    from cosmos3_serve.checks.image import named_images
    from cosmos3_serve.checks.preflight import asked_by_name, parse_checks
    from cosmos3_serve.checks.preflight import preflight as run

    names = parse_checks(checks)
    required = bool(image) or asked_by_name("image", checks)
    images = named_images(image or [], os.environ, required=required) if "image" in names or image else ()
    flags = {"offline": offline, "strict": strict, "warn_only": warn_only}
    report = asyncio.run(run(names, os.environ, s3_uri=s3_uri, images=images, timeout_s=timeout, **flags))
    return _show(report, as_json=json)


def access(
    capability: Annotated[str, typer.Option("--capability", help="What is to be run: cosmos3.")],
    engine: Annotated[
        str,
        typer.Option("--engine", help="framework or diffusers: whose files (env: COSMOS3_ENGINE; default framework)."),
    ] = "",
    timeout: Annotated[float, typer.Option("--timeout", min=1, max=600, help="Seconds for each question.")] = 10,
    offline: Offline = False,
    strict: Strict = False,
    warn_only: WarnOnly = False,
    json: Json = False,
) -> int:
    """Ask the Hub whether HF_TOKEN may fetch what a guarded start of the engine loads; nothing is downloaded.

    A token is not an entitlement: the question is put for one exact payload file at the pinned revision. The guardrail
    revision of the diffusers engine comes from COSMOS3_GUARDRAIL_REVISION. Exit 3 when an asset may not be fetched.
    """
    from cosmos3_serve.checks.access import access as run

    report = asyncio.run(
        run(
            capability, os.environ, engine=engine, offline=offline, strict=strict, warn_only=warn_only,
            timeout_s=timeout,
        )
    )  # fmt: skip
    return _show(report, as_json=json)


def _show(report: Report, *, as_json: bool) -> int:
    if as_json:
        output.emit(report.as_dict())
    else:
        print("\n".join(report.lines()), flush=True)
    return report.exit_code
