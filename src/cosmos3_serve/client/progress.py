"""What a submission tells while it runs: to nobody (log), or as bars on a terminal's stderr."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

LOG = logging.getLogger("cosmos3_serve.client")


class Progress(Protocol):
    """Listener of one submission. Calls are cheap, come from the event loop, and must not raise."""

    def phase(self, name: str) -> None:
        """A new phase began: submitting, waiting, downloading, publishing."""

    def submitting(self, request_id: str, resume: str) -> None:
        """The run is on disk and about to be posted; `resume` is the command that continues it."""

    def samples(self, done: int, total: int) -> None:
        """So many samples of the batch ended."""

    def step(self, sample: str, step: int, total: int) -> None:
        """A sample denoises."""

    def bytes(self, done: int, total: int) -> None:
        """So many bytes of the artifacts are here and verified so far."""

    def notice(self, text: str) -> None:
        """One sentence for a person: a warning, a retry."""


class Silent:
    """Only notices, to the log."""

    def phase(self, name: str) -> None: ...
    def submitting(self, request_id: str, resume: str) -> None: ...
    def samples(self, done: int, total: int) -> None: ...
    def step(self, sample: str, step: int, total: int) -> None: ...
    def bytes(self, done: int, total: int) -> None: ...

    def notice(self, text: str) -> None:
        LOG.warning("%s", text)


class Terminal:
    """Bars and notices on stderr; a context manager. Without a terminal nothing moves, and only notices are printed.

    Args:
        columns: of rich's progress display.
    """

    def __init__(self, *columns: ProgressColumn, quiet: bool = False) -> None:
        from rich.console import Console
        from rich.progress import Progress as RichProgress

        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._quiet = quiet
        hidden = quiet or not self._console.is_terminal
        self._bars = RichProgress(*columns, console=self._console, transient=True, disable=hidden)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def notice(self, text: str, style: str = "yellow") -> None:
        if not self._quiet:
            self._console.print(text, style=style, markup=False)


class Bars(Terminal):
    """Samples done, the current step, bytes and time left."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

        text, note = TextColumn("{task.description:<12}"), TextColumn("{task.fields[note]}")
        super().__init__(text, BarColumn(), MofNCompleteColumn(), note, TimeRemainingColumn(), quiet=quiet)
        self._samples = self._bars.add_task("samples", total=None, note="", visible=False)
        self._bytes = self._bars.add_task("MiB", total=None, note="", visible=False)

    def phase(self, name: str) -> None:
        self._bars.update(self._samples, note=name, visible=True)

    def submitting(self, request_id: str, resume: str) -> None:
        self.notice(f"request {request_id}; if this is interrupted: {resume}", style="dim")

    def samples(self, done: int, total: int) -> None:
        self._bars.update(self._samples, completed=done, total=total, visible=True)

    def step(self, sample: str, step: int, total: int) -> None:
        self._bars.update(self._samples, note=f"{sample}: step {step}/{total}")

    def bytes(self, done: int, total: int) -> None:
        self._bars.update(self._bytes, completed=done >> 20, total=max(1, total >> 20), visible=True)
