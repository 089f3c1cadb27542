"""`ray-batch` and `ray-health`: the S3-to-S3 client."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cosmos3_serve.cli import output
from cosmos3_serve.cli.options import settings_options
from cosmos3_serve.contract.wire import FRAMEWORK_REVISION
from cosmos3_serve.errors import UsageError
from cosmos3_serve.settings import TOKEN_ENV, ClientSettings

JsonFlag = Annotated[bool, typer.Option("--json", help="Print failures as one JSON object on stdout, too.")]


def register(app: typer.Typer) -> None:
    app.command("ray-batch")(ray_batch)
    app.command("ray-health")(ray_health)


@settings_options(ClientSettings)
def ray_batch(
    flags: dict[str, Any],
    input_path: Annotated[
        str,
        typer.Option(
            "--input-path",
            help="Batch: a JSON file or s3://bucket/key. Queue: a folder, a glob or s3://bucket/prefix/ of batches, or "
            "samples by line (.jsonl).",
        ),
    ] = "",
    output_path: Annotated[str, typer.Option("--output-path", help="s3://bucket/prefix/ or an absolute folder.")] = "",
    run_id: Annotated[str, typer.Option("--run-id", help="Recorded in the provenance.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the batch and print the plan; send nothing.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue the run or queue of --output-path (or the run of --run-id) where it stopped."
        ),
    ] = False,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Publish what succeeded, as status `partial`.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no notices.")] = False,
    json: JsonFlag = False,
) -> None:
    """Submit a batch, wait, verify every file, publish; prints the manifest.

    The bearer token comes from the environment variable that --token-env names. After Ctrl-C, a crash or a timeout the
    same run continues with --resume. Many batches or many samples become a queue of parts, each published on its own
    and then indexed; the same command continues it, on any number of machines (`cosmos3 queue`).
    """
    from cosmos3_serve.cli import queue
    from cosmos3_serve.client.progress import Bars
    from cosmos3_serve.client.submit import submit_batch
    from cosmos3_serve.queue.sources import is_queue
    from cosmos3_serve.queue.state import holds_queue

    # An empty flag is no flag: the environment decides, as in the baseline.
    flags["endpoint"] = [text for text in flags["endpoint"] or () if text.strip()]
    flags = {name: value for name, value in flags.items() if value not in ("", [])}
    settings = ClientSettings.load(flags)
    if resume and not dry_run and output_path.strip() and holds_queue(output_path):
        queue.go_on(output_path, flags, "generator", input_path=input_path, allow_partial=allow_partial, quiet=quiet)
        return
    if is_queue(input_path):
        order = {"input_path": input_path, "output_path": output_path, "dry_run": dry_run}
        queue.work_on(
            settings, queue.generator_work(settings, run_id), {**order, "allow_partial": allow_partial}, quiet
        )
        return
    if len(settings.endpoint) > 1:
        raise UsageError(
            "one batch goes to one service, and several are named",
            remedy="name one --endpoint, or give a folder of batches or samples by line (.jsonl)",
        )
    if not resume:
        for flag, value in (("--input-path", input_path), ("--output-path", output_path)):
            if not value.strip():
                raise UsageError(f"missing option {flag}", remedy="run the same command with --help")
    with Bars(quiet=quiet) as progress:
        manifest = submit_batch(
            input_path=input_path,
            output_path=output_path,
            run_id=run_id,
            dry_run=dry_run,
            resume=resume,
            allow_partial=allow_partial,
            progress=progress,
            **settings.model_dump(exclude={"parallel_parts", "part_attempts"})
            | {
                "endpoint": "".join(settings.endpoint),
                "expected_revision": settings.expected_revision or FRAMEWORK_REVISION,
            },
        )
    output.emit(manifest)


def ray_health(
    endpoint: Annotated[
        str, typer.Option("--endpoint", help="Address of the service (env: NPA_COSMOS3_RAY_ENDPOINT).")
    ] = "",
    token_env: Annotated[str, typer.Option("--token-env", help="Variable that holds the bearer token.")] = TOKEN_ENV,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds for the answer.")] = 30,
    json: JsonFlag = False,
) -> None:
    """Print the service's readiness report; exit code 3 when it is not ready."""
    from cosmos3_serve.client.health import ask_health

    health = ask_health(endpoint, token_env=token_env, timeout=timeout)
    if not health.ready and health.report and not json:
        output.emit(health.report)
    output.emit(health.check())
