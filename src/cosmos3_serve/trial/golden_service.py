"""The service that a golden run starts for itself, with a record of its start and of its end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cosmos3_serve.errors import Cosmos3Error, InputError, ServiceFailure, StartRefused
from cosmos3_serve.settings import TOKEN_ENV, TOKEN_FILE_ENV, GeneratorSettings
from cosmos3_serve.trial.serve_command import SETTINGS_PREFIXES, ServeCommand, no_proxy

START, JOIN = "server-start.json", "server-join.json"


class GoldenService:
    """`cosmos3 ray-serve` on a free loopback port, with the settings in effect and a token of its own.

    Args:
        settings: as merged from flags and environment; host, port and output root are replaced where they are left at
            their defaults, so that a golden run disturbs nothing.
        folder: takes `server-start.json`, `server-join.json`, the log and the outputs.
        timeout_s: seconds until it must be ready.
    """

    def __init__(self, settings: GeneratorSettings, folder: Path, *, timeout_s: float) -> None:
        self._folder = folder
        self._flags = service_flags(settings, folder)
        # What is no setting, such as where the framework's interpreter is, reaches the child by its environment.
        names = {GeneratorSettings.env_name(field) for field in GeneratorSettings.model_fields}
        own = names | {TOKEN_ENV, TOKEN_FILE_ENV}
        kept = {k: v for k, v in os.environ.items() if k.startswith(SETTINGS_PREFIXES) and k not in own}
        self.command = ServeCommand(self._flags, {**kept, **no_proxy()}, folder, start_timeout_s=timeout_s)
        self._started = 0.0
        self._ticks: int | None = None

    def launch(self) -> None:
        """Start it and write `server-start.json`; returns at once."""
        self._started = time.monotonic()
        self.command.launch()
        self._ticks = start_ticks(self.command.pid)
        record = {
            "pid": self.command.pid,
            "start_ticks": self._ticks,
            "started_at": _now(),
            "command": ["cosmos3", "ray-serve", *self._flags],
        }
        _write(self._folder / START, record)

    def wait_ready(self) -> dict[str, Any]:
        """The start's last line, once it is ready.

        Raises:
            StartRefused, UsageError: the service itself refused, with its own code and remedy.
            ServiceFailure: it ended otherwise, or is not ready in time.
        """
        try:
            return self.command.wait_ready().ready
        except ServiceFailure as failure:
            raise _refusal(self.command) or failure from None

    def stop(self) -> None:
        """SIGTERM to exactly the process that was started, wait for it, write `server-join.json`."""
        if not self.command.pid:
            return
        alive = self.command.exit_code is None
        same = not alive or start_ticks(self.command.pid) == self._ticks
        asked = time.monotonic()
        if same:
            self.command.stop()
        code = self.command.exit_code
        record = {
            "pid": self.command.pid,
            "start_ticks": self._ticks,
            "same_process": same,
            "signal": "SIGTERM" if alive and same else None,
            "exit_code": code,
            "ended_at": _now(),
            "lived_s": round(time.monotonic() - self._started, 3),
            "stopping_s": round(time.monotonic() - asked, 3),
        }
        _write(self._folder / JOIN, record)


def service_flags(settings: GeneratorSettings, folder: Path) -> list[str]:
    """The command line that gives a service exactly these settings."""
    own = {"host": "127.0.0.1", "port": 0, "output_path": folder / "outputs"}
    flags = []
    for field, info in GeneratorSettings.model_fields.items():
        value = getattr(settings, field)
        if field in own and value == info.default:
            value = own[field]
        if value is None or value == info.default:
            continue
        flag = GeneratorSettings.flag_name(field)
        if isinstance(value, bool):
            flags.append(flag if value else f"--no-{flag.removeprefix('--')}")
        else:
            flags += [flag, str(value)]
    return flags


def start_ticks(pid: int) -> int | None:
    """When the kernel started this process, in clock ticks since boot (a pid may be used again); None elsewhere."""
    try:
        # The name in parentheses may hold blanks and parentheses itself.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def _refusal(command: ServeCommand) -> Cosmos3Error | None:
    """The refusal that the service printed with `--json`, as our own; None where it printed none."""
    text = command.log_tail(200)
    at = text.rfind('{\n  "code"')
    if at < 0:
        return None
    try:
        problem, _ = json.JSONDecoder().raw_decode(text[at:])
        code, detail, remedy = (str(problem.get(name, "")) for name in ("code", "detail", "remedy"))
    except (ValueError, AttributeError):
        return None
    kind: type[Cosmos3Error] = {2: InputError, 3: StartRefused}.get(problem.get("exit_code"), ServiceFailure)
    return kind(f"the service did not start: {detail}", code=code, remedy=remedy)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _write(path: Path, record: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
