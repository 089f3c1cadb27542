"""`evidence export`: what may be shared about a publication."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cosmos3_serve.cli import output as out
from cosmos3_serve.cli.group import command_group
from cosmos3_serve.cli.info import JsonOption
from cosmos3_serve.cli.review import location_of
from cosmos3_serve.errors import UsageError


def register(app: typer.Typer) -> None:
    app.add_typer(command_group("evidence", "Records to share.", export=export))


def export(
    publication: Annotated[str, typer.Argument(help="s3://bucket/prefix or a directory that holds provenance.json.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="JSON file to write.")] = Path("evidence.json"),
    system_info: Annotated[
        Path | None, typer.Option("--system-info", help="Saved answer of GET /system-info: GPU family and count.")
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option("--deny", help="A name that must not appear; may be repeated.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write a record that names nobody and no place: hashes, revisions, counts, timings, GPU family.

    Built by allow-list from a verified publication, then searched for every name of the publication and of this
    environment; a single hit refuses the export.
    """
    from cosmos3_serve.review.evidence_export import export_evidence

    if output.suffix.lower() != ".json":
        raise UsageError("evidence is written as JSON", remedy="let the output file end in .json")
    made = export_evidence(location_of(publication), output, system_info=system_info, deny=deny or ())
    if json:
        out.emit({"evidence": str(output), "record": made.model_dump(mode="json")})
    else:
        print(output)
