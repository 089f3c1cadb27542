"""Decode every downloaded media file once, to prove that it is what it says (the work is done by `media_probe`)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from cosmos3_serve.contract.provenance import MediaProof
from cosmos3_serve.errors import IntegrityError
from cosmos3_serve.publication.media_probe import Expectation

FILE_TIMEOUT_S = 120.0
LIBRARIES = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR", "SYSTEMROOT")


class Decoder:
    """Async context manager over a few probe processes, started when first needed.

    A file that takes longer than `timeout_s`, or that takes its process down, is refused; the next file gets a fresh
    process.
    """

    def __init__(self, *, processes: int | None = None, timeout_s: float = FILE_TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._places = asyncio.Semaphore(processes or min(4, os.cpu_count() or 1))
        self._idle: list[asyncio.subprocess.Process] = []
        self._all: set[asyncio.subprocess.Process] = set()
        self._warming: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        for process in list(self._all):
            await self._kill(process)

    def warm(self) -> None:
        """Start one process now, so that it is loaded when the first file comes."""

        async def start() -> None:
            self._idle.append(await self._start())

        self._warming = self._warming or asyncio.create_task(start())

    async def check(self, path: Path, expect: Expectation, *, name: str) -> MediaProof:
        """Decode the file at `path`, called `name` in messages and in the proof.

        Raises:
            IntegrityError: code `media_invalid`.
        """
        async with self._places:
            if self._warming is not None:
                await asyncio.wait([self._warming])
            process = self._idle.pop() if self._idle else await self._start()
            try:
                answer = await asyncio.wait_for(self._ask(process, path, expect), self.timeout_s)
            except BaseException as error:
                await self._kill(process)
                if isinstance(error, TimeoutError):
                    raise _invalid(name, f"decoding takes longer than {self.timeout_s:g} s") from None
                if isinstance(error, OSError | EOFError | ValueError):
                    raise _invalid(name, "decoding it ends the decoder") from None
                raise
            self._idle.append(process)
        if not answer.get("ok"):
            raise _invalid(name, str(answer.get("reason")))
        fields = {key: answer[key] for key in ("kind", "width", "height", "frames") if key in answer}
        return MediaProof(path=name, **fields)

    async def _start(self) -> asyncio.subprocess.Process:
        # The probe needs no credential: it gets an environment without any.
        environ = {key: os.environ[key] for key in LIBRARIES if key in os.environ} | {"MALLOC_ARENA_MAX": "2"}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # a media file beside the caller must not be able to pose as a module
            "-m",
            "cosmos3_serve.publication.media_probe",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environ,
            start_new_session=True,  # Ctrl-C is the parent's to handle; closing stdin ends the probe in any case
        )
        self._all.add(process)
        return process

    async def _ask(self, process: asyncio.subprocess.Process, path: Path, expect: Expectation) -> dict[str, object]:
        assert process.stdin is not None and process.stdout is not None
        job = {"path": str(path), "expect": expect._asdict()}
        process.stdin.write(json.dumps(job).encode() + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            raise EOFError
        answer: dict[str, object] = json.loads(line)
        return answer

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        self._all.discard(process)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _invalid(name: str, reason: str) -> IntegrityError:
    return IntegrityError(
        f"artifact {name} is not what it says: {reason}",
        remedy="the bytes are as the service declared them; look at the file in the service's output before a new run",
        code="media_invalid",
    )
