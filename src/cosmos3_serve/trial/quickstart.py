"""`quickstart`: both services once, on this machine, without a GPU.

First act: S3 -> generator -> S3, verified, and shown. Second act (`reasoner_act`): the reasoner answers questions
about a video of the first. Everything is real: Ray clusters, HTTP services with their tokens, a local S3 API server,
vLLM. The weights are those of the block-world checkpoint, a small model of a drawn world; where it is not installed,
random ones, whose pictures and words are noise. Every record says which. The acts follow each other: two cores and a
laptop's memory hold one service at a time.
"""

from __future__ import annotations

import asyncio
import json as jsonlib
import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from cosmos3_serve.errors import CheckpointUnavailable, UsageError
from cosmos3_serve.weights.blockworld import BLOCKWORLD, find_blockworld

BUCKET = "quickstart"
ASKED_ABOUT = "/slide/vision.mp4"  # made from text alone
MARK, CACHE = ".made-by-quickstart", "cache"


def run(workdir: Path, console: Console, reasoner_workers: int = 1, checkpoint: str | None = None) -> dict[str, Any]:
    """One quickstart below `workdir`; returns the object that `--json` prints. Its `seconds` are those of the first
    act; the second's are in `reasoner`.

    Args:
        reasoner_workers: replicas of the second act; 0 leaves it out.
        checkpoint: of both acts; None: `choose()` says.

    Raises:
        UsageError: `workdir` holds something that no quickstart made, or an extra is not installed.
        Interrupted: Ctrl-C or SIGTERM; all children are gone by then.
        Cosmos3Error: whatever failed on the way.
    """
    from cosmos3_serve.trial import reasoner_act
    from cosmos3_serve.trial.children import Children
    from cosmos3_serve.trial.serve_command import no_proxy

    started = time.monotonic()
    prepare(workdir)

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:5.1f} s[/]  {text}")

    with Children():  # a signal between the acts ends us as one during an act does
        checkpoint = checkpoint or choose(say)
        result = _first_act(workdir, checkpoint, say)
        skipped = reasoner_act.missing() if reasoner_workers else "--no-reasoner was given"
        result |= {"reasoner": None, "reasoner_skipped": skipped}
        if skipped is None:
            (made,) = [item["path"] for item in result["artifacts"] if item["path"].endswith(ASKED_ABOUT)]
            video = Path(result["publication"]) / "artifacts" / made
            result["reasoner"] = reasoner_act.run(
                workdir, workdir / CACHE, checkpoint, video, reasoner_workers, no_proxy(), say, console
            )
        elif reasoner_workers:
            say(f"[yellow]no second act:[/] {escape(skipped)}")
    return result


def choose(say: Callable[[str], None]) -> str:
    """`blockworld`, or `tiny` where it is not installed.

    Raises:
        CheckpointUnavailable: it is there and altered.
    """
    try:
        find_blockworld()
    except CheckpointUnavailable as missing:
        if missing.stable_code != "checkpoint_not_found":
            raise
        say(f"[yellow]{escape(missing.detail)}: random weights instead, and all that is made is noise[/]")
        return "tiny"
    return BLOCKWORLD


def _first_act(workdir: Path, checkpoint: str, say: Callable[[str], None]) -> dict[str, Any]:
    from cosmos3_serve.review.contact_sheet import write_contact_sheet
    from cosmos3_serve.trial import demo
    from cosmos3_serve.trial.children import Children
    from cosmos3_serve.trial.independent import verify_publication
    from cosmos3_serve.trial.local_s3 import LocalS3
    from cosmos3_serve.trial.reasoner_act import LABELS
    from cosmos3_serve.trial.serve_command import ServeCommand, no_proxy

    started = time.monotonic()
    with Children() as children:
        say("local S3 API server")
        s3 = children.enter(LocalS3())
        what = LABELS[checkpoint]
        say(f"generator service: checkpoint {checkpoint} ({what}), engine diffusers, [yellow]guardrails off[/]")
        service = ServeCommand(_flags(workdir, checkpoint), {**s3.environ, **no_proxy()}, workdir / "logs")
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


def _flags(workdir: Path, checkpoint: str) -> list[str]:
    return [
        *("--host", "127.0.0.1", "--port", "0", "--engine", "diffusers", "--checkpoint", checkpoint),
        "--no-guardrails",
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


def _upload(files: Mapping[str, Path], environ: Mapping[str, str]) -> None:
    from cosmos3_serve.storage.location import open_store

    async def put_all() -> None:
        place = open_store(f"s3://{BUCKET}", environ)
        for key, path in files.items():
            await place.store.put_file(key, path)

    asyncio.run(put_all())


def _result(workdir: Path, seen: Mapping[str, Any], sheet: Path, seconds: float) -> dict[str, Any]:
    from cosmos3_serve.trial.shown import shown

    record = seen["provenance"]
    states = {result["args"]["name"]: result for result in record["structured_outputs"]}
    folder = workdir / "publication" / "artifacts"
    pictures = {a["sample"]: folder / a["path"] for a in record["artifacts"] if "/vision." in a["path"]}
    seen_as = shown(pictures) if record["weights"] == BLOCKWORLD else {}
    return {
        "publication": str(workdir / "publication"),
        "provenance": str(workdir / "publication" / "provenance.json"),
        "published_uri": record["published_uri"],
        "samples": [
            {
                "name": name,
                "mode": states[name]["args"]["model_mode"],
                "status": states[name]["status"],
                "shows_its_prompt": seen_as.get(name),
            }
            for name in record["sample_names"]
        ],
        "artifacts": seen["artifacts"],
        "contact_sheet": str(sheet),
        "engine": record["framework_revision"],
        "weights": record["weights"],
        "guardrails": record["guardrails"],
        "seconds": seconds,
    }
