"""A group of commands; every part of the tree is made here, so that all of it looks and fails alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

HELP_FLAGS = {"help_option_names": ["-h", "--help"]}  # commands below inherit them


class Group(TyperGroup):
    """Lists its commands with the whole first sentence of each; typer cuts it to one line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(1000)) for name, one in found if one is not None and not one.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def command_group(name: str, text: str, **commands: Callable[..., Any]) -> typer.Typer:
    """Commands by name, an underscore for a hyphen. A group of one command does not melt into it."""
    # Plain help: the rich panels cut long flag names off on a terminal of 80 columns.
    group = typer.Typer(
        name=name,
        cls=Group,
        help=text,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=HELP_FLAGS,
    )
    for command, function in commands.items():
        group.command(command.replace("_", "-"))(function)
    if len(commands) == 1:
        group.callback()(lambda: None)
    return group
