"""`batch recover`: publish what the service kept of a batch whose client failed after inference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cosmos3_serve.cli import output as out
from cosmos3_serve.cli.info import JsonOption
from cosmos3_serve.contract.wire import FRAMEWORK_REVISION
from cosmos3_serve.errors import ExitCode, UsageError
from cosmos3_serve.settings import TOKEN_ENV, ClientSettings


def recover(
    output_path: Annotated[str, typer.Option("--output-path", help="s3://bucket/prefix/ or an absolute folder.")] = "",
    request_id: Annotated[
        str, typer.Option("--request-id", help="Request id (or run id) of the batch that was not published.")
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            "--source",
            help="Copy of the service's output root, or of the request's folder in it: a directory or s3://bucket/prefix."
            " Without it the service's ledger is asked.",
        ),
    ] = "",
    input_path: Annotated[
        str,
        typer.Option("--input-path", help="The original batch, where the first attempt's journal is not here."),
    ] = "",
    endpoint: Annotated[
        str, typer.Option("--endpoint", help="Address of the service; default: the first attempt's.")
    ] = "",
    token_env: Annotated[str, typer.Option("--token-env", help="Variable that holds the bearer token.")] = TOKEN_ENV,
    hashes: Annotated[
        str, typer.Option("--hashes", help="SHA-256 sums made where the outputs lay (`sha256sum` format).")
    ] = "",
    run_id: Annotated[str, typer.Option("--run-id", help="Recorded in the provenance.")] = "",
    expected_revision: Annotated[
        str, typer.Option("--expected-revision", help="Revision that a ledger's response must name.")
    ] = FRAMEWORK_REVISION,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Publish what qualifies when other samples have no result.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the qualification report; publish nothing. Exit code 3 if refused.")
    ] = False,
    journal_dir: Annotated[
        Path | None, typer.Option("--journal-dir", help="Where the first attempt kept its runs.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", min=1, help="Seconds for what is asked of the service; default: as of ray-batch."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no notices.")] = False,
    json: JsonOption = False,
) -> int:
    """Qualify retained outputs and publish them with status `recovered`.

    Binds the engine's own records and media to the original request, decodes every file, and says what the publication
    was derived from. There is a response.json only where the service's ledger gives its exact bytes. The first
    attempt's recorded outcome is not changed, and a publication is never overwritten.
    """
    from cosmos3_serve.client.progress import Bars
    from cosmos3_serve.client.recovery.recover import RecoverOrder, recover_batch

    if not output_path.strip():
        raise UsageError("missing option --output-path", remedy="run the same command with --help")
    settings = ClientSettings.load({"endpoint": endpoint or None, "journal_dir": journal_dir})
    order = RecoverOrder(
        output_path=output_path,
        source=source,
        request_id=request_id,
        input_path=input_path,
        endpoint=endpoint,
        token_env=token_env,
        run_id=run_id,
        hashes=hashes,
        expected_revision=expected_revision,
        allow_partial=allow_partial,
        dry_run=dry_run,
        journal_dir=settings.journal_dir,
        timeout=timeout,
        spool_bytes=settings.spool_bytes,
    )
    with Bars(quiet=quiet) as progress:
        outcome = recover_batch(order, progress)
    if outcome.manifest is not None:
        out.emit(outcome.manifest)
    elif json:
        out.emit(outcome.report)
    else:
        _show(outcome.report)
    return ExitCode.DONE if outcome.refusal is None else outcome.refusal.exit_code


def _show(report: dict[str, Any]) -> None:
    """The report for people: one line a sample, one a file, one a finding."""
    recovery = report["recovery"]
    print(f"request {report['request_id']}: {report['status']}" + (f" ({report['code']})" if report["code"] else ""))
    print(f"from {recovery['source']} {recovery['location']}; response.json: {recovery['response']}")
    attempt = recovery["first_attempt"]
    if attempt is None:
        print("first attempt: no record of it here")
    else:
        print(f"first attempt: {attempt['state']}, {attempt['failure_code'] or 'no outcome recorded'}")
    for sample in report["samples"]:
        print(f"  {sample['name']}: {sample['state']}, {sample['mode']}, seed {sample['seed']}")
        for file in sample["files"]:
            seen = file["decoded"] or {}
            size = "{width}x{height}".format(**seen) if "width" in seen else ""
            frames = f"{seen['frames']} frames" if seen.get("frames") else ""
            facts = (file["sha256"][:16], f"{file['bytes']} bytes", size, frames, f"against {file['checked_against']}")
            print(f"    {file['path']}  " + "  ".join(filter(None, facts)))
        _findings(sample["findings"])
    _findings(report["findings"])


def _findings(findings: list[dict[str, str]]) -> None:
    for finding in findings:
        print(f"    {finding['code']}: {finding['file']} {finding['message']}")
