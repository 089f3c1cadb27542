"""`review …`: what a person looks at after a batch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cosmos3_serve.cli import output as out
from cosmos3_serve.cli.group import command_group
from cosmos3_serve.cli.info import JsonOption
from cosmos3_serve.errors import UsageError


def register(app: typer.Typer) -> None:
    app.add_typer(command_group("review", "Look at what a batch made.", contact_sheet=contact_sheet, build=build))


def contact_sheet(
    publication: Annotated[str, typer.Argument(help="s3://bucket/prefix or a directory that holds provenance.json.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="PNG to write.")] = Path("contact-sheet.png"),
    json: JsonOption = False,
) -> None:
    """Draw every sample of a publication on one PNG.

    Failed samples stay visible with their code; random weights are labelled. More than 40 samples make further pages.
    """
    from cosmos3_serve.review.contact_sheet import write_contact_sheet

    pages = write_contact_sheet(location_of(publication), output)
    if json:
        out.emit({"contact_sheet": str(pages[0]), "pages": [str(page) for page in pages]})
    else:
        for page in pages:
            print(page)


def build(
    sources: Annotated[
        list[str], typer.Argument(help="Publications: s3://bucket/prefix or directories that hold provenance.json.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write into.")] = Path("review"),
    note: Annotated[
        list[str] | None, typer.Option("--note", help="NAME=TEXT: what you saw in a sample; may be repeated.")
    ] = None,
    notes: Annotated[Path | None, typer.Option("--notes", help='JSON file of notes: {"NAME": "TEXT"}.')] = None,
    rrd: Annotated[
        bool, typer.Option("--rrd/--no-rrd", help="Write a Rerun recording, too (needs the extra `review`).")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Contact sheets, a Rerun recording and a page from one or many publications.

    Every file is verified against provenance.json first; a publication that does not hold what it declares is refused.
    Samples that failed or look defective stay in, with their notes.
    """
    from cosmos3_serve.review.build import build_review
    from cosmos3_serve.review.notes import read_notes

    if str(output).startswith("s3:/"):
        raise UsageError("a review is written into a local folder", remedy="give --output a folder")
    texts = read_notes(note or (), notes)
    with out.console().status("verifying and drawing"):
        made = build_review([location_of(source) for source in sources], output, notes=texts, recording=rrd)
    paths = [*made.sheets, *([made.recording] if made.recording else []), made.page]
    if json:
        recording = str(made.recording) if made.recording else None
        sheets = [str(sheet) for sheet in made.sheets]
        out.emit(
            {
                "contact_sheets": sheets,
                "recording": recording,
                "page": str(made.page),
                "samples": made.samples,
                "remarks": made.remarks,
            }
        )
        return
    for path in paths:
        print(path)
    for name, remarks in made.remarks.items():
        for remark in remarks:
            out.console().print(f"{name}: {remark}", markup=False, style="yellow")


def location_of(publication: str) -> str:
    """S3 as it is; a directory made absolute."""
    return publication if publication.startswith("s3://") else os.path.abspath(publication)  # noqa: PTH100
