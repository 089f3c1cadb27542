"""How every command speaks: results on stdout, everything for people on stderr, and one way to say no.

With `--json` stdout carries exactly one JSON object, the result or the problem. A failure never shows a traceback: the
expected kinds say what to do, an unexpected one leaves an incident file that holds the traceback. `COSMOS3_DEBUG=1`
shows it at once.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from cosmos3_serve.errors import Cosmos3Error, ExitCode, Interrupted, ServiceFailure, UsageError

DEBUG_ENV = "COSMOS3_DEBUG"
FIELD_ERRORS_SHOWN = 20
INCIDENTS_KEPT = 20


def emit(result: Mapping[str, Any]) -> None:
    """One JSON object on stdout (two spaces, sorted keys, as the baseline's client prints its manifest)."""
    sys.stdout.write(json.dumps(result, indent=2, sort_keys=True, ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()


def console() -> Console:
    """For people: progress, hints, errors. Always stderr, so that stdout can be piped."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def report(error: BaseException, *, command: str, as_json: bool) -> int:
    """Say what went wrong and return the exit code."""
    if os.environ.get(DEBUG_ENV, "") not in ("", "0"):
        traceback.print_exception(error, file=sys.stderr)
    known = _known(error)
    if as_json:
        emit(known.as_problem() | {"exit_code": known.exit_code})
    _print_problem(known, command)
    return known.exit_code


def _print_problem(error: Cosmos3Error, command: str) -> None:
    out = console()
    verb = "interrupted" if isinstance(error, Interrupted) else "failed"
    out.print(f"[bold red]{escape(command)} {verb}:[/] {escape(error.detail)}")
    for found in error.errors[:FIELD_ERRORS_SHOWN]:
        remedy = f" [dim]({escape(found.remedy)})[/]" if found.remedy else ""
        out.print(f"  [yellow]{escape(found.field)}[/]: {escape(found.message)}{remedy}")
    if (more := len(error.errors) - FIELD_ERRORS_SHOWN) > 0:
        out.print(f"  … and {more} more")
    if error.remedy:
        out.print(f"  what to do: {escape(error.remedy)}")
    out.print(f"  [dim]code {escape(error.stable_code)}, exit {error.exit_code}[/]")


def _known(error: BaseException) -> Cosmos3Error:
    """The same failure as a member of the tree; whatever is not expected becomes an incident."""
    if isinstance(error, Cosmos3Error):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("stopped by Ctrl-C")
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return ServiceFailure(f"{where}{error.strerror}", code="os_error")
    path = _incident(error)
    hint = f"the traceback is in {path}" if path else f"set {DEBUG_ENV}=1 and run again to see the traceback"
    return ServiceFailure(
        f"unexpected {type(error).__name__}; this is a fault of ours", remedy=hint, code="internal_error"
    )


def usage(message: str) -> UsageError:
    return UsageError(message, remedy="run the same command with --help")


def _incident(error: BaseException) -> Path | None:
    """Write the traceback to a private file; the oldest files go. None when nowhere is writable."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    for folder in (Path(state) / "cosmos3-serve" / "incidents", Path(tempfile.gettempdir()) / "cosmos3-incidents"):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = folder / f"{secrets.token_hex(4)}.log"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                traceback.print_exception(error, file=file)
            for old in sorted(folder.glob("*.log"), key=lambda p: p.stat().st_mtime)[:-INCIDENTS_KEPT]:
                old.unlink(missing_ok=True)
            return path
        except OSError:
            continue
    return None


def exit_code_of(value: object) -> int:
    """What a finished command means to the shell: nothing or a result is done, an int is a code."""
    return value if isinstance(value, int) and not isinstance(value, bool) else ExitCode.DONE
