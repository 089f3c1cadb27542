"""What a worker tells while it runs: to the log, or as a bar with figures on a terminal's stderr."""

from __future__ import annotations

import logging
from typing import Protocol

from cosmos3_serve.client.progress import Terminal
from cosmos3_serve.queue.board import Figures

LOG = logging.getLogger("cosmos3_serve.queue")


class QueueProgress(Protocol):
    """Listener of one worker. Calls are cheap, come from the event loop, and must not raise."""

    def figures(self, figures: Figures) -> None:
        """About once a second."""

    def notice(self, text: str) -> None:
        """One sentence for a person."""


class Silent:
    """Only notices, to the log."""

    def figures(self, figures: Figures) -> None: ...

    def notice(self, text: str) -> None:
        LOG.warning("%s", text)


class QueueBars(Terminal):
    """Samples and parts, failures, and the time left."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

        columns = TextColumn("samples"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}")
        super().__init__(*columns, quiet=quiet)
        self._task = self._bars.add_task("samples", total=None, note="")

    def figures(self, figures: Figures) -> None:
        ended = figures.samples_ended + figures.samples_running
        self._bars.update(self._task, total=figures.samples, completed=ended, note=described(figures))


def described(figures: Figures) -> str:
    """`parts 3/10 (2 running), 1 sample failed, 12.5 samples/s, 0:09:20 left`."""
    words = [f"parts {figures.parts_ended}/{figures.parts} ({figures.parts_running} running)"]
    if figures.samples_failed:
        words.append(f"{figures.samples_failed} samples failed")
    if figures.rate:
        words.append(f"{figures.rate:.3g} samples/s")
    if figures.eta_s is not None:
        left = int(figures.eta_s)
        words.append(f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left")
    return ", ".join(words)
