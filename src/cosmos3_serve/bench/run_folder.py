"""RunFolder: how a run lies on disk. Records first and always; whether it is valid; figures of a valid one only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from cosmos3_serve.bench.findings import Finding
from cosmos3_serve.errors import InputError

T = TypeVar("T")

RUN, TABLE, PAGE = "run.json", "table.csv", "report.md"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """
    Args:
        records: name of the file of records, one JSON object a line.
        figures: the keys under which figures stand in `run.json`.
    """

    directory: Path
    records: str
    figures: tuple[str, ...]

    def require_new(self, *others: str) -> None:
        """
        Args:
            others: names of what else only a run leaves.

        Raises:
            InputError: the directory holds a run already (code `run_exists`).
        """
        if any((self.directory / name).exists() for name in (RUN, self.records, *others)):
            raise InputError(
                f"{self.directory} holds a run already",
                code="run_exists",
                remedy="name another --output; a run is never replaced",
            )

    def keep(self, records: Iterable[str]) -> None:
        """Write the records, whatever they are worth. Raises InputError: there is a run already, or no folder."""
        self.require_new()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make {self.directory}: {error.strerror}") from None
        (self.directory / self.records).write_text("".join(f"{line}\n" for line in records), encoding="utf-8")

    def conclude(self, about: Mapping[str, Any], findings: Sequence[Finding], figures: Mapping[str, Any]) -> None:
        """Write what ran and what was found; `figures` only where nothing was."""
        head = dict(about)
        head |= {"valid": not findings, "findings": [f"{finding.code}: {finding.as_text()}" for finding in findings]}
        head |= {} if findings else figures
        (self.directory / RUN).write_text(json.dumps(head, indent=1) + "\n", encoding="utf-8")

    def show(self, table: str, page: str) -> None:
        """The figures of a valid run for people and spreadsheets."""
        (self.directory / TABLE).write_text(table, encoding="utf-8")
        (self.directory / PAGE).write_text(page, encoding="utf-8")

    def restore(self, build: Callable[[dict[str, Any], Iterable[str]], T]) -> T:
        """A run as it was written, without what was concluded of it: that is done anew.

        Args:
            build: makes it of the head and of the lines of its records.

        Raises:
            InputError: code `run_unreadable`.
        """
        try:
            head = json.loads((self.directory / RUN).read_text(encoding="utf-8"))
            for name in ("valid", "findings", *self.figures):
                head.pop(name, None)
            with (self.directory / self.records).open(encoding="utf-8") as lines:
                return build(head, lines)
        except ValidationError as error:
            first = error.errors()[0]
            raise self._unreadable(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise self._unreadable(str(error)) from None

    def _unreadable(self, why: str) -> InputError:
        first = next(iter(why.splitlines()), "")
        return InputError(f"{self.directory} holds no run that can be read: {first}", code="run_unreadable")


def cell(value: Any) -> Any:
    """A value as a CSV carries it."""
    return f"{value:.6g}" if isinstance(value, float) else value
