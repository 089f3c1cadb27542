"""`golden-eval show|run`: the smoke that a service must pass (docs/contract.md 8)."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from cosmos3_serve.checks.golden import RAY_SERVE
from cosmos3_serve.cli import output
from cosmos3_serve.cli.group import command_group
from cosmos3_serve.cli.options import settings_options
from cosmos3_serve.errors import ExitCode, UsageError
from cosmos3_serve.settings import TOKEN_ENV, GeneratorSettings

Name = Annotated[str, typer.Argument(help="Which one; there is cosmos3-ray-serve.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


def group() -> typer.Typer:
    """The commands below `cosmos3 golden-eval` and `npa workbench golden-eval`."""
    return command_group("golden-eval", "The smoke that a service must pass, and what it proves.", show=show, run=run)


def register(app: typer.Typer) -> None:
    app.add_typer(group())


def show(name: Name, json: Json = False) -> None:
    """Print what the evaluation is, what it requires, and on which GPU targets it was passed so far."""
    from cosmos3_serve.checks.golden import entry

    output.emit(entry(name))


@settings_options(GeneratorSettings)
def run(
    flags: dict[str, Any],
    name: Name = RAY_SERVE,
    endpoint: Annotated[
        str, typer.Option("--endpoint", help="Evaluate this running service; without it one is started.")
    ] = "",
    token_env: Annotated[str, typer.Option("--token-env", help="Variable that holds the bearer token.")] = TOKEN_ENV,
    target: Annotated[
        str, typer.Option("--target", help="sm_90, sm_100, sm_120 or cpu: refuse to run on anything else.")
    ] = "",
    publish: Annotated[
        str, typer.Option("--publish", help="Publish to s3://bucket/prefix/; default: into the evidence folder.")
    ] = "",
    expect: Annotated[str, typer.Option("--expect", help="The status that counts as success (exit 0).")] = "PASS",
    evidence_dir: Annotated[
        Path | None, typer.Option("--evidence-dir", help="An empty folder for all records; default: a new one here.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=10, help="Seconds for the start, again for the batch.")] = (
        1800
    ),
    json: Json = False,
) -> int:
    """Run it: a small batch through a service, verified, and a verdict that says exactly what was proven.

    The block-world model is asked for two pictures and two clips of its scenes, and their pixels are measured: one that
    shows another colour, shape, count or motion is FAIL, with the sample's name and what it shows.

    PASS is the production alone: the pinned framework, trained weights, guardrails applied, a GPU. Anything less that
    went through is PASS_ with what was less, such as PASS_DIFFUSERS_RANDOM_UNGUARDED_CPU, and exit 3 unless --expect
    names it; FAIL is exit 4. A checklist says what of an image's acceptance on its target was shown. Without --endpoint
    the flags and variables of ray-serve decide what is started.
    """
    from cosmos3_serve.checks.golden import FAIL, entry
    from cosmos3_serve.cli.serve import resolve_engine
    from cosmos3_serve.contract.targets import CPU, TARGETS
    from cosmos3_serve.trial.golden_run import GoldenOrder, run_golden

    entry(name)
    if target and target not in (*TARGETS, CPU):
        raise UsageError(f"unknown target {target[:40]!r}", remedy=f"use one of {', '.join((*TARGETS, CPU))}")
    if not expect.startswith("PASS"):
        raise UsageError(f"{expect[:60]!r} is no status to hope for", remedy="give PASS, or PASS_ with what is less")
    settings = None
    if endpoint:
        given = [GeneratorSettings.flag_name(field) for field, value in flags.items() if value is not None]
        if given:
            raise UsageError(
                f"{given[0]} is a flag of the service to start, and --endpoint names a running one",
                remedy="give either --endpoint or the flags of ray-serve",
            )
    else:
        settings = GeneratorSettings.load(flags)
        settings = settings.model_copy(update={"engine": resolve_engine(settings, os.environ)})
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = (evidence_dir or Path(f"golden-eval-{stamp}")).absolute()
    console = output.console()
    result = run_golden(
        GoldenOrder(folder, settings, endpoint, token_env, target, publish, timeout),
        lambda text: console.print(text, markup=False, style="dim"),
    )
    if json:
        output.emit(result)
    else:
        _tell(result)
    if result["status"] == expect:
        return ExitCode.DONE
    return ExitCode.SERVICE if result["status"] == FAIL else ExitCode.REFUSED


def _tell(result: dict[str, Any]) -> None:
    target = result["target"] or {"target": "unknown", "status": "unknown"}
    print(f"{result['status']}  engine {result['framework_revision']}, weights {result['weights']},", end=" ")
    print(f"target {target['target']} ({target['status']})")
    for sample, shown in result["shown"].items():
        if shown:
            print(f"  {sample}: shows what was asked for")
    for text in result["failures"]:
        print(f"  failed: {text}")
    for text in result["not_proven"]:
        print(f"  not proven: {text}")
    for row in result["checklist"]:
        print(f"  [{row['state']}] {row['item']}: {row['why']}")
    print(f"  records: {result['evidence_dir']}", flush=True)
