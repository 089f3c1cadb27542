"""A group of commands; every part of the tree is made here, so that all of it looks and fails alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer


def command_group(name: str, text: str, **commands: Callable[..., Any]) -> typer.Typer:
    """Commands by name, an underscore for a hyphen. A group of one command does not melt into it."""
    # Plain help: the rich panels cut long flag names off on a terminal of 80 columns.
    group = typer.Typer(
        name=name, help=text, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    for command, function in commands.items():
        group.command(command.replace("_", "-"))(function)
    if len(commands) == 1:
        group.callback()(lambda: None)
    return group
