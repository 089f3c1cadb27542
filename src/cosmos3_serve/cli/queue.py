"""`cosmos3 queue …`: look at a queue of parts, pause, continue or cancel it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cosmos3_serve.cli import output
from cosmos3_serve.cli.group import command_group
from cosmos3_serve.cli.info import JsonOption
from cosmos3_serve.contract.wire import FRAMEWORK_REVISION
from cosmos3_serve.errors import UsageError
from cosmos3_serve.settings import ClientSettings, ReasonerBatchSettings

if TYPE_CHECKING:
    from cosmos3_serve.queue.records import Wanted
    from cosmos3_serve.queue.work import Work

OutputPath = Annotated[str, typer.Argument(metavar="OUTPUT_PATH", help="The --output-path of the queue.")]
JournalDir = Annotated[Path | None, typer.Option("--journal-dir", help="As given to the worker on this machine.")]


def register(app: typer.Typer) -> None:
    text = "Queues of `ray-batch` and `reasoner batch`: look, pause, resume, cancel, from any machine."
    app.add_typer(command_group("queue", text, status=status, pause=pause, resume=resume, cancel=cancel))


def status(output_path: OutputPath, journal_dir: JournalDir = None, json: JsonOption = False) -> None:
    """Show parts, samples, failures and the time left. Running samples are known of this machine's worker only."""
    from cosmos3_serve.queue.state import status as look

    found = look(output_path, journal_dir or ClientSettings.load().journal_dir)
    if json:
        output.emit(found)
    else:
        _show(found)


def pause(output_path: OutputPath, json: JsonOption = False) -> None:
    """Begin no more parts; what runs ends. Workers stay and wait for `resume`."""
    from cosmos3_serve.queue.records import Wanted

    _want(output_path, Wanted.PAUSED, json)


def cancel(output_path: OutputPath, json: JsonOption = False) -> None:
    """Cancel running parts at their services; workers end with exit code 5. Published parts stay."""
    from cosmos3_serve.queue.records import Wanted

    _want(output_path, Wanted.CANCELLED, json)


def resume(
    output_path: OutputPath,
    endpoint: Annotated[
        list[str] | None, typer.Option("--endpoint", help="Address of a service, repeatable; default: as before.")
    ] = None,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Failed samples do not make the queue fail.")
    ] = False,
    work: Annotated[
        bool, typer.Option("--work/--no-work", help="Also work on it here, until it ends.", show_default=False)
    ] = True,
    journal_dir: JournalDir = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no notices.")] = False,
    json: JsonOption = False,
) -> None:
    """Lift a pause or cancellation, and work on the queue here until it ends; prints the index."""
    from cosmos3_serve.queue.records import Wanted
    from cosmos3_serve.queue.state import want

    found = want(output_path, Wanted.RUNNING, ended_is_fine=work)
    if not work:
        _told(found, json)
        return
    flags = {"journal_dir": journal_dir, "endpoint": endpoint or None}
    go_on(output_path, flags, found["kind"], allow_partial=allow_partial, quiet=quiet)


def go_on(
    output_path: str, flags: Mapping[str, Any], kind: str, *, input_path: str = "", allow_partial: bool, quiet: bool
) -> None:
    """Work on the queue that is at a place, with the options that it had here where `flags` say nothing else."""
    from cosmos3_serve.queue.state import kept_options

    given = {name: value for name, value in flags.items() if value is not None}
    kept = kept_options(output_path, ClientSettings.load({"journal_dir": given.get("journal_dir")}).journal_dir)
    partial, run_id = bool(kept.pop("allow_partial", False)) or allow_partial, str(kept.pop("run_id", ""))
    order = {"input_path": input_path, "output_path": output_path, "allow_partial": partial}
    if kind == "reasoner":
        questions = ReasonerBatchSettings.load({**kept, **given})
        work_on(questions, reasoner_work(questions, run_id), order, quiet)
    else:
        samples = ClientSettings.load({**kept, **given})
        work_on(samples, generator_work(samples, run_id), order, quiet)


def work_on(
    settings: ClientSettings | ReasonerBatchSettings, work: Work, order: Mapping[str, Any], quiet: bool = False
) -> None:
    """Work on a queue and print its index, or its plan.

    Args:
        order: further fields of `QueueOrder`.
    """
    from cosmos3_serve.queue.progress import QueueBars
    from cosmos3_serve.queue.run import QueueOrder, run_queue

    if not order["output_path"].strip():
        raise UsageError("missing option --output-path", remedy="run the same command with --help")
    whole = QueueOrder(
        **{"input_path": "", **order},
        endpoints=settings.endpoint,
        parallel=settings.parallel_parts,
        attempts=settings.part_attempts,
        work=work,
    )
    with QueueBars(quiet=quiet) as progress:
        found = run_queue(whole, progress)
    output.emit(found)


def generator_work(settings: ClientSettings, run_id: str) -> Work:
    from cosmos3_serve.queue.generator import GeneratorOptions

    return GeneratorOptions(
        token_env=settings.token_env,
        expected_revision=settings.expected_revision or FRAMEWORK_REVISION,
        timeout=settings.timeout,
        concurrency=settings.concurrency,
        spool_bytes=settings.spool_bytes,
        journal_dir=settings.journal_dir,
        run_id=run_id,
    )


def reasoner_work(settings: ReasonerBatchSettings, run_id: str) -> Work:
    from cosmos3_serve.reasoner_client.batch.runner import ReasonerWork

    return ReasonerWork(run_id=run_id, **settings.model_dump(exclude={"endpoint", "parallel_parts", "part_attempts"}))


def _want(output_path: str, wanted: Wanted, json: bool) -> None:
    from cosmos3_serve.queue.state import want

    _told(want(output_path, wanted), json)


def _told(found: dict[str, Any], json: bool) -> None:
    if json:
        output.emit(found)
    else:
        typer.echo(f"the queue at {found['output_path']} is {found['wanted']}")


def _show(found: dict[str, Any]) -> None:
    parts, samples = found["parts"], found["samples"]
    typer.echo(f"queue {found['queue_id']} at {found['output_path']}: {found['state']}"
               + (f", {found['outcome']}" if found["outcome"] else ""))  # fmt: skip
    typer.echo(f"  parts    {parts['completed']} completed, {parts['partial']} partial, {parts['failed']} failed, "
               f"{parts['running']} running, {parts['pending']} pending of {parts['total']}")  # fmt: skip
    typer.echo(f"  samples  {samples['succeeded']} succeeded, {samples['failed']} failed, "
               f"{samples['running_ended']} ended in running parts, of {samples['total']}")  # fmt: skip
    if found["eta_s"] is not None:
        typer.echo(f"  left     about {found['eta_s']:.0f} s at {found['samples_per_s']:g} samples/s here")
    for row in found["running"]:
        typer.echo(f"  {row['part']}  running on {row['endpoint']}, worker {row['worker']}")
    for row in found["failed"]:
        typer.echo(f"  {row['part']}  {row['status']}" + (f": {row['code']}" if row["code"] else ""))
        for sample in row["samples"]:
            typer.echo(f"    {sample['name']}: {sample['code']}: {sample['message']}".rstrip(": "))
