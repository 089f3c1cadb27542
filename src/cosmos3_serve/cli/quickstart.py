"""`quickstart`: both services once, on this machine, without a GPU.

First act: S3 -> generator -> S3, verified, and shown. Second act (`second_act`): the reasoner answers questions about
a video of the first. Everything is real but the weights: Ray clusters, HTTP services with their tokens, a local S3 API
server, vLLM. What they make and say is noise, because the tiny checkpoint's weights are random, and every record says
so. The acts follow each other: two cores and a laptop's memory hold one service at a time.
"""

from __future__ import annotations

import asyncio
import json as jsonlib
import os
import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from cosmos3_serve.cli import output
from cosmos3_serve.cli.info import JsonOption
from cosmos3_serve.contract.wire import DIFFUSERS_REVISION
from cosmos3_serve.errors import UsageError

BUCKET = "quickstart"
WORKDIR = Path(".quickstart")
ASKED_ABOUT = "/rain/vision.mp4"  # made from text alone
MARK, CACHE = ".made-by-quickstart", "cache"


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
    json: JsonOption = False,
) -> None:
    """Try everything on this machine: no GPU, no downloads.

    Starts the generator with a tiny checkpoint of random weights, sends nine samples (five modes and a transfer) from a
    local S3 server through it and back, verifies what was published and draws a contact sheet. Then the reasoner, with
    real vLLM, answers two questions about one of the videos. Nothing keeps running afterwards.
    """
    console = output.console()
    result = run(workdir.absolute(), console, reasoner_workers if reasoner else 0)
    if json:
        output.emit(result)
    else:
        _farewell(Console(highlight=False, soft_wrap=True), result)


def run(workdir: Path, console: Console, reasoner_workers: int = 1) -> dict[str, Any]:
    """One quickstart below `workdir`; returns the object that `--json` prints. Its `seconds` are those of the first
    act; the second's are in `reasoner`.

    Args:
        reasoner_workers: replicas of the second act; 0 leaves it out.

    Raises:
        UsageError: `workdir` holds something that no quickstart made, or an extra is not installed.
        Interrupted: Ctrl-C or SIGTERM; all children are gone by then.
        Cosmos3Error: whatever failed on the way.
    """
    from cosmos3_serve.cli import second_act
    from cosmos3_serve.cli.children import Children

    started = time.monotonic()
    prepare(workdir)

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:5.1f} s[/]  {text}")

    with Children():  # a signal between the acts ends us as one during an act does
        result = _first_act(workdir, say)
        skipped = second_act.missing() if reasoner_workers else "--no-reasoner was given"
        result |= {"reasoner": None, "reasoner_skipped": skipped}
        if skipped is None:
            (made,) = [item["path"] for item in result["artifacts"] if item["path"].endswith(ASKED_ABOUT)]
            video = Path(result["publication"]) / "artifacts" / made
            result["reasoner"] = second_act.run(workdir, video, reasoner_workers, no_proxy(), say, console)
        elif reasoner_workers:
            say(f"[yellow]no second act:[/] {escape(skipped)}")
    return result


def _first_act(workdir: Path, say: Callable[[str], None]) -> dict[str, Any]:
    from cosmos3_serve.cli import demo
    from cosmos3_serve.cli.children import Children
    from cosmos3_serve.cli.independent import verify_publication
    from cosmos3_serve.cli.local_s3 import LocalS3
    from cosmos3_serve.cli.serve_command import ServeCommand
    from cosmos3_serve.review.contact_sheet import write_contact_sheet

    started = time.monotonic()
    with Children() as children:
        say("local S3 API server")
        s3 = children.enter(LocalS3())
        say("generator service: tiny checkpoint (random weights), engine diffusers, [yellow]guardrails off[/]")
        service = ServeCommand(_flags(workdir), {**s3.environ, **no_proxy()}, workdir / "logs")
        children.start(service.launch, service.stop)
        request = demo.batch(BUCKET)
        media = demo.write_media(workdir / "inputs")
        (workdir / "batch.json").write_text(jsonlib.dumps(request, indent=2) + "\n", encoding="utf-8")
        s3.create_bucket(BUCKET)
        _upload({"batch.json": workdir / "batch.json", **media}, s3.environ)
        say(f"{len(request['samples'])} samples and {len(media)} conditioning files are in s3://{BUCKET}/")
        ready = service.wait_ready().ready
        say(f"ready at {escape(ready['endpoint'])}")
        command = _batch_command(workdir, ready)
        say(escape(shlex.join(["cosmos3", *command])))
        children.run(command, service.environ)
        say("verifying the publication independently")
        seen = verify_publication(BUCKET, "outputs", s3.environ, workdir / "publication")
        (sheet, *_) = write_contact_sheet(f"s3://{BUCKET}/outputs/", workdir / "contact-sheet.png", s3.environ)
        say("stopping")
    return _result(workdir, seen, sheet, round(time.monotonic() - started, 1))


def prepare(workdir: Path) -> None:
    """An empty working folder but for the cached checkpoint; only a folder that a quickstart made is emptied.

    Raises:
        UsageError: there is something else in it.
    """
    mark = workdir / MARK
    if workdir.exists() and not mark.is_file() and (not workdir.is_dir() or any(workdir.iterdir())):
        raise UsageError(f"{workdir} is not empty and no quickstart made it", remedy="name another --workdir")
    if mark.is_file():
        for old in workdir.iterdir():
            if old.name not in (CACHE, MARK):
                shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    workdir.mkdir(parents=True, exist_ok=True)
    mark.write_text("The next quickstart empties this folder.\n", encoding="utf-8")


def _flags(workdir: Path) -> list[str]:
    return [
        *("--host", "127.0.0.1", "--port", "0", "--engine", "diffusers", "--checkpoint", "tiny", "--no-guardrails"),
        *("--device", "cpu", "--allowed-s3-roots", f"s3://{BUCKET}/inputs", "--output-path", str(workdir / "outputs")),
        *("--max-batch-size", "4", "--batch-wait-timeout-s", "0.3", "--drain-timeout-s", "5"),
        *("--cache-dir", str(workdir / CACHE)),
    ]


def _batch_command(workdir: Path, ready: Mapping[str, Any]) -> list[str]:
    return [
        *("ray-batch", "--input-path", f"s3://{BUCKET}/batch.json", "--output-path", f"s3://{BUCKET}/outputs/"),
        *("--endpoint", str(ready["endpoint"]), "--expected-revision", str(ready["framework_revision"])),
        *("--journal-dir", str(workdir / "journal")),
    ]


def no_proxy() -> dict[str, str]:
    """Loopback is never asked of a proxy, whatever else is."""
    hosts = ",".join(filter(None, [os.environ.get("NO_PROXY", ""), "127.0.0.1", "localhost"]))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def _upload(files: Mapping[str, Path], environ: Mapping[str, str]) -> None:
    from cosmos3_serve.storage.location import open_store

    async def put_all() -> None:
        place = open_store(f"s3://{BUCKET}", environ)
        for key, path in files.items():
            await place.store.put_file(key, path)

    asyncio.run(put_all())


def _result(workdir: Path, seen: Mapping[str, Any], sheet: Path, seconds: float) -> dict[str, Any]:
    record = seen["provenance"]
    states = {result["args"]["name"]: result for result in record["structured_outputs"]}
    return {
        "publication": str(workdir / "publication"),
        "provenance": str(workdir / "publication" / "provenance.json"),
        "published_uri": record["published_uri"],
        "samples": [
            {"name": name, "mode": states[name]["args"]["model_mode"], "status": states[name]["status"]}
            for name in record["sample_names"]
        ],
        "artifacts": seen["artifacts"],
        "contact_sheet": str(sheet),
        "engine": record["framework_revision"],
        "weights": record["weights"],
        "guardrails": record["guardrails"],
        "seconds": seconds,
    }


def _farewell(console: Console, result: Mapping[str, Any]) -> None:
    total = sum(item["bytes"] for item in result["artifacts"])
    console.print(
        f"\n[bold green]Done in {result['seconds']:g} s.[/] {len(result['samples'])} samples,"
        f" {len(result['artifacts'])} artifacts, {total / 1000:.0f} kB, verified."
        f"\n  engine {result['engine']}, [yellow]weights: {result['weights']}[/] (the pictures are noise),"
        " guardrails off\n"
    )
    for name in ("contact_sheet", "publication", "provenance"):
        console.print(f"  {name.replace('_', ' '):14} {escape(str(result[name]))}")
    if (act := result["reasoner"]) is not None:
        console.print(
            f"\n[bold green]Asked about {escape(Path(act['video']).parent.name)} in {act['seconds']:g} s.[/]"
            f" {len(act['answers'])} answers of {act['model']}, [yellow]weights: {act['weights']}[/] (the words mean"
            " nothing).\n  The second question found its session, and the video where the first had left it."
        )
    else:
        console.print(f"\n  no second act: {escape(result['reasoner_skipped'])}")
    review = f"cosmos3 review build {shlex.quote(result['publication'])} --no-rrd"
    console.print(f"\nLook closer (with the extra `review` also as a Rerun recording):\n\n  {escape(review)}")
    console.print(NEXT.format(revision=DIFFUSERS_REVISION), markup=False)


NEXT = """
Next, with a GPU and real weights:

  pip install 'cosmos3-serve[diffusers]'
  export NPA_COSMOS3_RAY_TOKEN=...                      # the bearer token that clients must send
  export AWS_ENDPOINT_URL=... AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=...
  cosmos3 ray-serve --engine diffusers --checkpoint nvidia/Cosmos3-Nano --output-path /outputs \\
      --allowed-s3-roots s3://your-bucket/inputs --no-guardrails
  cosmos3 ray-batch --input-path s3://your-bucket/batch.json --output-path s3://your-bucket/outputs/ \\
      --endpoint http://the-host:8000 --expected-revision {revision}

  export COSMOS3_REASONER_TOKEN=...
  cosmos3 reasoner serve --model nvidia/Cosmos3-Nano --workers 1
  cosmos3 reasoner ask clip.mp4 "What happens?" --endpoint http://the-host:8000
"""
