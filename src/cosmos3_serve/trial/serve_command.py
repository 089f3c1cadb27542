"""Our services' own commands as child processes, with nothing of the caller's own service settings in them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cosmos3_serve.generator.local import LocalGenerator
from cosmos3_serve.reasoner.local import LocalReasoner
from cosmos3_serve.service.local import READY_FILE_ENV, LocalService

# A first start compiles what it imports, perhaps on a busy machine; a service that cannot start ends by itself.
START_TIMEOUT_S = 600.0
SETTINGS_PREFIXES = ("NPA_COSMOS3_", "COSMOS3_")


class _Command(LocalService):
    """Runs the command itself, flags and all, so that what is tried is what is documented.

    Args:
        flags: the command line after the command's words; no service setting reaches it in another way.
        environ: variables over the caller's.
        folder: takes the log and the ready file.
    """

    words: tuple[str, ...]

    def __init__(
        self,
        flags: Sequence[str],
        environ: Mapping[str, str],
        folder: Path,
        *,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        super().__init__(environ, folder, start_timeout_s=start_timeout_s)
        kept = {self.token_env, READY_FILE_ENV, *environ}
        self.environ = {k: v for k, v in self.environ.items() if k in kept or not k.startswith(SETTINGS_PREFIXES)}
        self._flags = list(flags)

    def command(self) -> list[str]:
        return [sys.executable, "-m", "cosmos3_serve.cli.main", *self.words, *self._flags, "--json"]


class ServeCommand(_Command, LocalGenerator):
    words = ("ray-serve",)


class ReasonerServeCommand(_Command, LocalReasoner):
    words = ("reasoner", "serve")


def no_proxy() -> dict[str, str]:
    """Loopback is never asked of a proxy, whatever else is."""
    hosts = ",".join(filter(None, [os.environ.get("NO_PROXY", ""), "127.0.0.1", "localhost"]))
    return {"NO_PROXY": hosts, "no_proxy": hosts}
