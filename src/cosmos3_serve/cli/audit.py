"""`batch audit`: whether publications are complete and unaltered, from their objects alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape

from cosmos3_serve.cli import output
from cosmos3_serve.cli.info import JsonOption
from cosmos3_serve.errors import ExitCode, NotFound, UsageError

if TYPE_CHECKING:
    from cosmos3_serve.publication.audit import Audit
    from cosmos3_serve.publication.audit_all import Audits

SHOWN = 50  # faults of one place


def audit(
    place: Annotated[str, typer.Argument(help="s3://bucket/prefix/ or a folder.")] = "",
    all_below: Annotated[str, typer.Option("--all", help="Audit every publication below this prefix or folder.")] = "",
    report: Annotated[
        Path | None,
        typer.Option("--report", help="With --all: JSON Lines file of results; places in it are not read again."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=64, help="With --all: publications at once.")] = 8,
    json: JsonOption = False,
) -> int:
    """Audit publications: every object there, unaltered, decodable, declared, and the record consistent.

    Reads every byte, and nothing but the objects themselves. Exit code 0: intact; 4: at least one fault, each is named;
    5: unfinished; 2: there is no publication.
    """
    if bool(place.strip()) == bool(all_below.strip()):
        raise UsageError("give one publication, or --all with a prefix", remedy="run the same command with --help")
    if place.strip():
        if report is not None:
            raise UsageError("--report goes with --all", remedy="leave it out, or give --all")
        return _one(_location(place), json)
    return _all(_location(all_below), report, jobs, json)


def _location(text: str) -> str:
    text = text.strip()
    return text if text.startswith("s3://") else str(Path(text).absolute())


def _one(place: str, json: bool) -> int:
    from cosmos3_serve.publication.audit import Outcome, audit_place
    from cosmos3_serve.storage.location import open_store

    found = asyncio.run(audit_place(open_store(place)))
    if found.outcome is Outcome.ABSENT:
        raise NotFound(
            f"there is no publication at {found.place}",
            remedy="name the folder of its provenance.json",
            code="no_publication",
        )
    if json:
        output.emit(found.as_dict())
    else:
        _show(_people(), found)
    return _code(found.outcome == Outcome.FAULTY, found.outcome == Outcome.UNFINISHED)


def _all(prefix: str, report: Path | None, jobs: int, json: bool) -> int:
    from cosmos3_serve.cli.progress_bar import progress
    from cosmos3_serve.publication.audit import Outcome
    from cosmos3_serve.publication.audit_all import audit_all
    from cosmos3_serve.storage.location import open_store

    def run(told: Callable[..., None]) -> Audits:
        return asyncio.run(audit_all(open_store(prefix), report, jobs=jobs, told=told))

    with progress("listing", 0) as told:
        found = run(told)
    if not found.audits and not found.unread:
        raise NotFound(f"there is no publication below {found.prefix}", code="no_publication")
    if json:
        output.emit(found.as_dict())
    else:
        _show_all(found)
    counts = found.counts()
    return _code(bool(counts[Outcome.FAULTY] or found.unread), bool(counts[Outcome.UNFINISHED]))


def _code(faulty: bool, unfinished: bool) -> int:
    return ExitCode.SERVICE if faulty else ExitCode.INCOMPLETE if unfinished else ExitCode.DONE


def _people() -> Console:
    return Console(highlight=False, soft_wrap=True)


def _show_all(found: Audits) -> None:
    out = _people()
    for result in found.audits:
        if result.outcome != "intact":
            _show(out, result)
    for place, why in sorted(found.unread.items()):
        out.print(f"[yellow]unread[/] {escape(place)}: {escape(why)}")
    counts = ", ".join(f"{value} {key}" for key, value in found.counts().items() if value or key == "intact")
    known = f" ({found.known} from the report)" if found.known else ""
    total = decimal(sum(result.bytes for result in found.audits))
    out.print(f"{len(found.audits)} publications{known}: {counts}; {total}")


def _show(out: Console, found: Audit) -> None:
    colour = {"intact": "green", "faulty": "red"}.get(found.outcome, "yellow")
    facts = f"{found.status}, {found.samples} samples, {found.artifacts} artifacts" if found.status else "not sealed"
    out.print(f"[{colour}]{found.outcome}[/] {escape(found.place)} ({escape(facts)}, {decimal(found.bytes)} read)")
    for fault in found.faults[:SHOWN]:
        out.print(f"  {escape(str(fault))} [dim]({escape(fault.code)})[/]")
    if (more := len(found.faults) - SHOWN) > 0:
        out.print(f"  … and {more} more; --json lists all")
