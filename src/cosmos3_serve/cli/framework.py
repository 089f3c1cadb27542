"""`framework doctor`: is everything there that the framework engine needs?"""

from __future__ import annotations

from typing import Annotated

import typer

from cosmos3_serve.cli import output
from cosmos3_serve.cli.group import command_group
from cosmos3_serve.errors import ExitCode


def register(app: typer.Typer) -> None:
    app.add_typer(command_group("framework", "The framework engine's own interpreter.", doctor=doctor))


def doctor(json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False) -> int:
    """Say what is missing in the framework's interpreter, and the exact commands that fix it.

    The interpreter is the one that NPA_COSMOS3_FRAMEWORK_PYTHON names. Exit code 3 when something required is missing.
    """
    from cosmos3_serve.generator.engines.framework.doctor import diagnose

    findings = diagnose()
    missing = [finding for finding in findings if not finding.ok and finding.required]
    if json:
        output.emit({"ok": not missing, "checks": [finding.as_dict() for finding in findings]})
    else:
        for finding in findings:
            state = "ok  " if finding.ok else ("FAIL" if finding.required else "note")
            print(f"{state} {finding.name}: {finding.detail}")
            if finding.fix and not finding.ok:
                print(f"     fix: {finding.fix}")
    return ExitCode.REFUSED if missing else ExitCode.DONE
