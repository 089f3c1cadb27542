"""`review …`: what a person looks at after a batch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cosmos3_serve.cli import output as out
from cosmos3_serve.cli.info import JsonOption


def register(app: typer.Typer) -> None:
    review = typer.Typer(name="review", help="Look at what a batch made.", no_args_is_help=True, rich_markup_mode=None)
    review.command("contact-sheet")(contact_sheet)
    # A group of one command would otherwise melt into it.
    review.callback()(lambda: None)
    app.add_typer(review)


def contact_sheet(
    publication: Annotated[str, typer.Argument(help="s3://bucket/prefix or a directory that holds provenance.json.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="PNG to write.")] = Path("contact-sheet.png"),
    json: JsonOption = False,
) -> None:
    """Draw every sample of a publication on one PNG.

    Failed samples stay visible with their code; random weights are labelled. More than 40 samples make further pages.
    """
    from cosmos3_serve.review.contact_sheet import write_contact_sheet

    location = publication if publication.startswith("s3://") else os.path.abspath(publication)  # noqa: PTH100
    pages = write_contact_sheet(location, output)
    if json:
        out.emit({"contact_sheet": str(pages[0]), "pages": [str(page) for page in pages]})
    else:
        for page in pages:
            print(page)
