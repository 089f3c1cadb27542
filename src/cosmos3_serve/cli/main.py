"""The commands: `cosmos3 …`, and the same tree as `npa workbench cosmos3 …`.

Commands are thin (parse, call one function, print) and import what is heavy only when they run, so that `--help` and
the client need neither Ray nor torch. `run()` is the only place where a failure becomes words and an exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from cosmos3_serve.cli import (
    batch,
    batches,
    bench,
    deploy,
    evidence,
    framework,
    golden_eval,
    health,
    info,
    output,
    queue,
    quickstart,
    reasoner,
    review,
    serve,
)
from cosmos3_serve.cli.group import command_group
from cosmos3_serve.errors import ExitCode

# Groups that the seed's documents also call without `cosmos3` before them.
SHARED = {"health": health.group, "golden-eval": golden_eval.group}
HELP = "Serve NVIDIA Cosmos3-Nano: batched generation from S3 to S3 on Ray Serve."


def build() -> typer.Typer:
    """The `cosmos3` tree; each room of commands registers its own."""
    app = command_group("cosmos3", HELP)
    app.callback()(info.version_option)
    for room in (
        serve,
        framework,
        batch,
        batches,
        queue,
        reasoner,
        bench,
        deploy,
        health,
        golden_eval,
        quickstart,
        review,
        evidence,
        info,
    ):
        room.register(app)
    return app


def build_npa() -> typer.Typer:
    """The same commands where the seed's documents call them: `npa workbench cosmos3 …`, `npa workbench health …`."""
    app = command_group("npa", HELP)
    app.callback()(info.version_option)
    workbench = command_group("workbench", "Tools of the workbench.")
    workbench.add_typer(build(), name="cosmos3")
    for name, group in SHARED.items():
        workbench.add_typer(group(), name=name)
    app.add_typer(workbench, name="workbench")
    return app


def run(app: typer.Typer, prog: str, argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; prints every failure, raises none."""
    args = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in args
    words = _command_words(app, args)
    command = " ".join([prog, *words])
    try:
        return output.exit_code_of(_narrowed(app, words)(args=args, prog_name=prog, standalone_mode=False))
    except typer.TyperException as error:
        message = error.format_message()
        if message.startswith("Usage: "):  # a group without a command: typer raises its help text
            print(message, file=sys.stderr)
            return ExitCode.INPUT
        return output.report(output.usage(message), command=command, as_json=as_json)
    except typer.Abort:
        return output.report(KeyboardInterrupt(), command=command, as_json=as_json)
    except BrokenPipeError:
        sys.stdout = None  # the reader went away; the flush at exit would complain
        return ExitCode.DONE
    except (Exception, KeyboardInterrupt) as error:
        return output.report(error, command=command, as_json=as_json)


def _command_words(app: typer.Typer, args: Sequence[str]) -> list[str]:
    """The subcommand's words for the error line (`workbench cosmos3 ray-batch`), without what it is given: that may be
    a question or a path."""
    words: list[str] = []
    group: typer.Typer | None = app
    for arg in args:
        if group is None:
            break
        groups = {g.typer_instance.info.name: g.typer_instance for g in group.registered_groups if g.typer_instance}
        commands = {command.name for command in group.registered_commands}
        if arg not in groups and arg not in commands:
            break
        words.append(arg)
        group = groups.get(arg)
    return words


def _narrowed(app: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """The tree without what stands beside these words: typer would read every signature of all commands, 0.1 s."""
    if not words:
        return app
    narrow = copy.copy(app)
    narrow.registered_commands = [command for command in app.registered_commands if command.name == words[0]]
    narrow.registered_groups = []
    for group in app.registered_groups:
        if group.typer_instance and group.typer_instance.info.name == words[0]:
            below = copy.copy(group)
            below.typer_instance = _narrowed(group.typer_instance, words[1:])
            narrow.registered_groups.append(below)
    if not narrow.registered_callback:
        narrow.callback()(lambda: None)  # or a command that is left alone would melt into its group
    return narrow


def leave(code: int) -> NoReturn:
    """End the process with this exit code.

    obstore's threads outlive what was asked of them. One that finds the interpreter gone aborts the process, and the
    exit code with it (seen in one of ten failing TLS connections): so the interpreter is not taken down around them.
    """
    if "obstore" in sys.modules and "ray" not in sys.modules:  # Ray's own processes end by its exit functions
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or its reader went away
                stream.flush()
        os._exit(code)
    sys.exit(code)


def cosmos3() -> NoReturn:
    leave(run(build(), "cosmos3"))


def npa() -> NoReturn:
    leave(run(build_npa(), "npa"))


if __name__ == "__main__":
    cosmos3()
