"""Command lines as the real parser takes them, without running anything; and the commands that stand in a script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import typer

from cosmos3_serve.cli import main

PROGRAMS = {"cosmos3": main.build, "npa": main.build_npa}
AFTER = re.compile(r"\s*(?:\)\"?\s*)?(?:&&|\|\||;|\||>|2>|<).*$")


def parse(line: list[str]) -> dict[str, Any]:
    """What the parser makes of a command line; raises as the parser does (unknown command or flag, wrong type)."""
    command: Any = typer.main.get_command(PROGRAMS[line[0]]())
    context: Any = None
    name, args = line[0], line[1:]
    while True:
        context = command.make_context(name, list(args), parent=context)
        if not hasattr(command, "resolve_command"):
            return dict(context.params)
        args = [*context._protected_args, *context.args]
        name, command, args = command.resolve_command(context, args)


def in_script(script: str, variables: Mapping[str, str] = MappingProxyType({})) -> Iterator[list[str]]:
    """Every call of our programs in a script for the shell, with variables replaced; substitutions become a word."""
    for line in script.replace("\\\n", " ").splitlines():
        text = line.strip()
        for program in PROGRAMS:
            found = re.search(rf"(?:^|[\s(]){program}\s", text)
            if not found or text.startswith("#"):
                continue
            call = text[found.start() :].strip().lstrip("(")
            call = re.sub(r"\$\([^)]*\)", "word", call)
            call = AFTER.sub("", call).rstrip(") ")
            call = re.sub(r"\$\{?([A-Za-z_]+)\}?", lambda name: variables.get(name[1], "word"), call)
            yield shlex.split(call)
