"""A bar for commands that do a known number of things, and what a model says first of a wrong value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cosmos3_serve.cli import output


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar on stderr; called with what is being done, how much of it is done, and of how much."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.console(), transient=True) as bar:
        task = bar.add_task(what, total=total)

        def show(label: str, done: int, of: int) -> None:
            bar.update(task, description=label, completed=done, total=of)

        yield show


def first_error(error: Exception) -> str:
    """The first thing that is wrong, on one line."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        found = error.errors()[0]
        return f"{'.'.join(str(place) for place in found['loc'])}: {found['msg']}"
    return str(error)
