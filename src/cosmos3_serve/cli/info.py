"""Commands that tell: `version`, `settings`, `errors`."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Annotated, Any

import typer

from cosmos3_serve import __version__
from cosmos3_serve.cli import output, tables

PARTS = ("ray", "torch", "diffusers", "transformers", "obstore", "av", "pillow")

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


def register(app: typer.Typer) -> None:
    app.command("version")(version)
    app.command("settings")(settings)
    app.command("errors")(errors)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"cosmos3-serve {__version__}")
        raise typer.Exit


def version_option(
    version: Annotated[
        bool,
        # An eager option's callback runs before a command is asked for.
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version.", show_default=False
        ),
    ] = False,
) -> None:
    """Options of the whole tree."""


def version(json: JsonOption = False) -> None:
    """Print versions, ours and of what we stand on."""
    facts: dict[str, Any] = {"cosmos3-serve": __version__, "python": platform.python_version()}
    facts["packages"] = {name: _installed(name) for name in PARTS}
    if json:
        output.emit(facts)
        return
    print(f"cosmos3-serve {__version__} (Python {facts['python']})")
    for name, found in facts["packages"].items():
        print(f"  {name} {found or 'not installed'}")


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def settings(
    json: JsonOption = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of docs/operations.md.")] = False,
) -> None:
    """List every setting of the service and of the client.

    Flag, environment variable, type, default, limits and meaning, generated from the code.
    """
    if json:
        output.emit({"settings": {name: tables.settings_rows(model) for name, model in tables.SETTINGS.items()}})
        return
    for name, model in tables.SETTINGS.items():
        print(f"## {name}\n")
        _show(tables.settings_rows(model), tables.SETTINGS_CODE, markdown)
        print()


def errors(
    json: JsonOption = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of docs/errors.md.")] = False,
) -> None:
    """List every error code with its exit code."""
    if json:
        output.emit({"errors": tables.error_rows()})
        return
    _show(tables.error_rows(), tables.ERRORS_CODE, markdown)


def _show(rows: list[dict[str, str]], code_columns: tuple[str, ...], markdown: bool) -> None:
    if markdown:
        print(tables.markdown(rows, code_columns), end="")
    else:
        for row in rows:
            head, *facts, meaning = row.values()
            print(
                head,
                *(f"{name} {value}" for name, value in zip(list(row)[1:-1], facts, strict=True) if value),
                sep="  ",
            )
            print(f"    {meaning}")
