"""Prober: a few processes that open media, started when first needed, replaced when they die, hang or grow old."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmos3_serve.errors import NotReady, ServiceFailure
from cosmos3_serve.media.confine import environ
from cosmos3_serve.media.refusal import COMMAND, Refused, broken
from cosmos3_serve.media.sniff import Kind
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.normalise import RECIPE
from cosmos3_serve.reasoner.media.replica import ReplicaDecoder
from cosmos3_serve.reasoner.media.worker import settings_text
from cosmos3_serve.reasoner.shares import Shares

MODULE = "cosmos3_serve.reasoner.media.worker"
JOBS_PER_PROCESS = 200  # decoders leak
START_S = 30.0
VERSION = 2  # of the rules in the room `media/` and in `judge`


@dataclass(frozen=True, slots=True)
class Probed:
    """What a content is; `served`: what the normalised copy at the job's `out` is, where one was made."""

    info: MediaInfo
    served: MediaInfo | None


class Prober:
    """
    Args:
        limits: `probe_workers` processes at once; `max_waiting` jobs may wait.
        module: the worker, for tests of dying and hanging ones.
    """

    def __init__(self, limits: MediaLimits, decoder: ReplicaDecoder, *, module: str = MODULE) -> None:
        self._limits, self._decoder, self._module = limits, decoder, module
        self._free: list[_Process] = []
        self._slots = Shares(limits.probe_workers, limits.max_waiting, _busy)
        self._closed = False

    @property
    def recipe(self) -> str:
        """Of the copies that it makes."""
        return RECIPE

    @property
    def rules(self) -> str:
        """What a verdict depends on besides the content."""
        return f"{VERSION}-{RECIPE}-{_fingerprint(self._decoder)}-{self._limits.fingerprint()}"

    async def probe(self, path: Path, kind: Kind, out: Path, tenant: str = "") -> Probed:
        """Look into a file, and write a copy to `out` where replicas would get the original wrong.

        Raises:
            Refused: it is not let in; also when its process dies of it or runs out of time.
            NotReady: code `media_busy`: too many files wait.
            ServiceFailure: code `probe_failed`: no process can be started, or the file cannot be read at all.
        """
        async with self._slots.place(tenant):
            process = self._free.pop() if self._free else _Process(self._module, self._limits, self._decoder)
            try:
                answer = await process.ask({"path": str(path), "kind": kind, "out": str(out)})
            except BaseException:
                await process.stop()
                raise
            if self._closed or process.jobs >= JOBS_PER_PROCESS:
                await process.stop()
            else:
                self._free.append(process)
        if "refused" in answer:
            raise Refused(**answer["refused"])
        if "fault" in answer:
            raise ServiceFailure(f"the stored media cannot be read: {answer['fault']}", code="probe_failed")
        served = answer["served"]
        return Probed(MediaInfo.from_dict(answer["info"]), MediaInfo.from_dict(served) if served else None)

    async def close(self) -> None:
        self._closed = True
        while self._free:
            await self._free.pop().stop()


class _Process:
    """One worker process, for one job at a time."""

    def __init__(self, module: str, limits: MediaLimits, decoder: ReplicaDecoder) -> None:
        self._module, self._limits = module, limits
        self._settings = settings_text(limits, decoder)
        self._process: asyncio.subprocess.Process | None = None
        self.jobs = 0

    async def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """
        Raises:
            Refused: the process died or hung over this job.
            ServiceFailure: the process cannot be started.
        """
        process = self._process or await self._start()
        assert process.stdin is not None and process.stdout is not None
        self.jobs += 1
        limit_s = self._limits.probe_timeout_s
        try:
            async with asyncio.timeout(limit_s) as bound:
                process.stdin.write(json.dumps(job).encode() + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
                if b'"stage"' in line[:10]:
                    limit_s = self._limits.normalise_timeout_s
                    bound.reschedule(asyncio.get_running_loop().time() + limit_s)
                    line = await process.stdout.readline()
        except TimeoutError:
            raise broken("media_too_slow", f"the file was not decoded within {limit_s:g} s", COMMAND) from None
        except (ConnectionError, ValueError):
            line = b""
        if not line.endswith(b"\n"):
            raise broken("media_kills_decoder", "a decoder died of the file", COMMAND)
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                self._settings,
                env=environ(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            assert process.stdout is not None
            async with asyncio.timeout(START_S):
                ready = await process.stdout.readline()
        except (OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise ServiceFailure(f"no process for media can be started ({reason})", code="probe_failed") from None
        if ready != b"ready\n":
            raise ServiceFailure("the process for media ends at once: is `av` installed?", code="probe_failed")
        return process

    async def stop(self) -> None:
        """Kill it and wait for its end; also while being cancelled."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(asyncio.ensure_future(process.wait()))


def _busy() -> NotReady:
    return NotReady("too many media files wait to be looked into", code="media_busy", retry_after_s=2)


def _fingerprint(decoder: ReplicaDecoder) -> str:
    return hashlib.sha256(json.dumps(decoder.as_dict(), sort_keys=True).encode()).hexdigest()[:8]
