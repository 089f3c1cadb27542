"""`cosmos3 bench generator`: arrivals and shapes against a generator service."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from cosmos3_serve.cli import output
from cosmos3_serve.cli.progress_bar import first_error, progress
from cosmos3_serve.errors import UsageError
from cosmos3_serve.settings import TOKEN_ENV


def generator(
    output_dir: Annotated[Path, typer.Option("--output", help="A directory of this run alone.")],
    arrivals: Annotated[
        str, typer.Option("--arrivals", help="Comma list of burst, steady:RATE, poisson:RATE, closed:CLIENTS.")
    ] = "burst,poisson:4,closed:4",
    shapes: Annotated[
        str, typer.Option("--shapes", help="Comma list of FRAMESxSTEPS[@RESOLUTION]; + joins a mix.")
    ] = "1x4",
    requests: Annotated[int, typer.Option("--requests", min=1, max=1000, help="Of each cell.")] = 32,
    samples: Annotated[int, typer.Option("--samples", min=1, max=64, help="Of each request.")] = 1,
    repeats: Annotated[int, typer.Option("--repeats", min=1, max=100, help="Of all cells.")] = 1,
    fetch: Annotated[bool, typer.Option("--fetch", help="Download every artifact, within the measured time.")] = False,
    content: Annotated[
        str, typer.Option("--content", help="plain, or scenes: block-world captions; with --fetch what came is judged.")
    ] = "plain",
    seed: Annotated[int, typer.Option("--seed", min=0, max=1_000_000, help="Of arrivals and samples.")] = 1,
    endpoint: Annotated[
        str, typer.Option("--endpoint", help="http(s)://host:port (env: NPA_COSMOS3_RAY_ENDPOINT).")
    ] = "",
    token_env: Annotated[str, typer.Option("--token-env", help="Variable that holds the bearer token.")] = TOKEN_ENV,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds for everything.")] = 3600,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Send samples of every shape in every pattern of arrivals, check the run, and write its figures.

    Figures: samples and frames a second, latency, sizes of coalesced and of inference batches, time by phase. An
    invalid run (a failed sample, foreign work on the service, arrivals that were late, …) has none: it ends with exit
    code 3, and its records are kept. Batches stay in the service's ledger until its retention ends.
    """
    from pydantic import ValidationError

    from cosmos3_serve.bench.generator import plots, report
    from cosmos3_serve.bench.generator.arrivals import Arrivals
    from cosmos3_serve.bench.generator.records import Run, Workload
    from cosmos3_serve.bench.generator.run import run as run_bench
    from cosmos3_serve.bench.generator.shapes import Mix
    from cosmos3_serve.client.load import endpoint_of, token_of

    try:
        workload = Workload(
            arrivals=tuple(Arrivals.parse(part) for part in arrivals.split(",")),
            mixes=tuple(Mix.parse(part) for part in shapes.split(",")),
            requests=requests, samples=samples, repeats=repeats, fetch=fetch, seed=seed,
            content=content,
        )  # fmt: skip
    except (ValueError, ValidationError) as error:
        raise UsageError(f"no such run: {first_error(error)}") from None
    if len(set(workload.keys())) != len(workload.keys()):
        raise UsageError("--arrivals and --shapes want each of their parts once")
    report.require_new(output_dir)
    where, token = endpoint_of(endpoint), token_of(token_env)

    async def run() -> Run:
        with progress("requests", workload.requests) as show:
            return await run_bench(where, token, workload, timeout_s=timeout, progress=show)

    found = asyncio.run(run())
    rows = report.write(found, output_dir)
    plots.page(found, plots.draw(found, output_dir), output_dir)
    if json:
        output.emit({"directory": str(output_dir), "valid": True, "rows": [row.model_dump() for row in rows]})
    else:
        print(report.markdown(found, rows), end="")
