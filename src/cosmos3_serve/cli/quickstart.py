"""`quickstart`: try both services on this machine, without a GPU."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from cosmos3_serve.cli import output
from cosmos3_serve.cli.info import JsonOption
from cosmos3_serve.contract.wire import DIFFUSERS_REVISION
from cosmos3_serve.errors import UsageError

WORKDIR = Path(".quickstart")


def register(app: typer.Typer) -> None:
    app.command("quickstart")(quickstart)


def quickstart(
    workdir: Annotated[
        Path, typer.Option("--workdir", help="Where results are left; emptied at the start if an earlier run made it.")
    ] = WORKDIR,
    reasoner: Annotated[
        bool, typer.Option("--reasoner/--no-reasoner", help="Whether there is a second act; it needs vLLM.")
    ] = True,
    reasoner_workers: Annotated[int, typer.Option(min=1, max=8, help="Replicas of the second act's reasoner.")] = 1,
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", help="blockworld, or tiny: random weights. Default: blockworld if installed.")
    ] = "",
    json: JsonOption = False,
) -> None:
    """Try everything on this machine: no GPU, no downloads.

    Starts the generator with the block-world checkpoint, a small model of drawn scenes, sends nine samples of five
    modes from a local S3 server through it and back, verifies what was published and draws a contact sheet. Then the
    reasoner, with real vLLM, answers two questions about one of the videos. What the pictures show and the answers say
    is measured and told. Nothing keeps running afterwards.
    """
    from cosmos3_serve.trial.quickstart import run

    console = output.console()
    if checkpoint not in ("", "blockworld", "tiny"):
        raise UsageError(f"no checkpoint {checkpoint[:40]!r} for a trial", remedy="use blockworld or tiny")
    result = run(workdir.absolute(), console, reasoner_workers if reasoner else 0, checkpoint or None)
    if json:
        output.emit(result)
    else:
        _farewell(Console(highlight=False, soft_wrap=True), result)


def _farewell(console: Console, result: Mapping[str, Any]) -> None:
    total = sum(item["bytes"] for item in result["artifacts"])
    console.print(
        f"\n[bold green]Done in {result['seconds']:g} s.[/] {len(result['samples'])} samples,"
        f" {len(result['artifacts'])} artifacts, {total / 1000:.0f} kB, verified."
        f"\n  engine {result['engine']}, [yellow]weights: {result['weights']}[/] ({_shown(result)}), guardrails off\n"
    )
    for name in ("contact_sheet", "publication", "provenance"):
        console.print(f"  {name.replace('_', ' '):14} {escape(str(result[name]))}")
    if (act := result["reasoner"]) is not None:
        console.print(
            f"\n[bold green]Asked about {escape(Path(act['video']).parent.name)} in {act['seconds']:g} s.[/]"
            f" {len(act['answers'])} answers of {act['model']}, [yellow]weights: {act['weights']}[/] ({_said(act)}).\n"
            "  The second question found its session, and the video where the first had left it."
        )
    else:
        console.print(f"\n  no second act: {escape(result['reasoner_skipped'])}")
    review = f"cosmos3 review build {shlex.quote(result['publication'])} --no-rrd"
    console.print(f"\nLook closer (with the extra `review` also as a Rerun recording):\n\n  {escape(review)}")
    console.print(NEXT.format(revision=DIFFUSERS_REVISION), markup=False)


def _shown(result: Mapping[str, Any]) -> str:
    measured = [s for s in result["samples"] if s.get("shows_its_prompt") is not None]
    if not measured:
        return "the pictures are noise"
    right = sum(s["shows_its_prompt"] for s in measured)
    return f"{right} of {len(measured)} measured samples show what their prompts say"


def _said(act: Mapping[str, Any]) -> str:
    measured = [a for a in act["answers"] if a.get("measured")]
    if not measured:
        return "the words mean nothing" if act["weights"] == "random" else "nothing was measured in the clip"
    return f"{sum(a['right'] for a in measured)} of {len(measured)} say what is measured in the clip"


NEXT = """
Next, with a GPU and real weights:

  uv pip install '.[guardrails]' opencv-python-headless # in this checkout: the diffusers engine and NVIDIA's checks
  export NPA_COSMOS3_RAY_TOKEN=...                      # the bearer token that clients must send
  export HF_TOKEN=...                                   # of an account that accepted the guardrails' licence
  export COSMOS3_GUARDRAIL_REVISION=...                 # the commit of nvidia/Cosmos-1.0-Guardrail that you reviewed
  export AWS_ENDPOINT_URL=... AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=...
  cosmos3 health access --capability cosmos3 --engine diffusers
  cosmos3 ray-serve --engine diffusers --checkpoint nvidia/Cosmos3-Nano --output-path /outputs \\
      --allowed-s3-roots s3://your-bucket/inputs        # --dry-run makes the checks alone; --no-guardrails is recorded
  cosmos3 ray-batch --input-path s3://your-bucket/batch.json --output-path s3://your-bucket/outputs/ \\
      --endpoint http://the-host:8000 --expected-revision {revision}

  export COSMOS3_REASONER_TOKEN=...
  cosmos3 reasoner serve --model nvidia/Cosmos3-Nano --workers 1
  cosmos3 reasoner ask clip.mp4 "What happens?" --endpoint http://the-host:8000
"""
