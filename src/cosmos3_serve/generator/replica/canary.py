"""Canary: one small inference through everything, before anybody may rely on the service.

It proves in one go that a replica answers, that the weights compute, that the encoder writes, and that what one actor
writes below the output root the other can read. It vouches for one replica: another one in its place, whoever put it
there, has to pass again.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from pathlib import Path
from typing import Protocol

import structlog
from PIL import Image

from cosmos3_serve.contract.profile import EngineProfile
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.generator.engines.job import EngineJob, EngineResult
from cosmos3_serve.generator.ledger.files import PRIVATE

log = structlog.get_logger(__name__)

STEPS = 2
ANSWER_S = 4.0
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)

Verdict = tuple[bool, str]


class Subject(Protocol):
    """The part of the engine's port that the canary needs."""

    async def generate(self, job: EngineJob) -> EngineResult: ...
    async def incarnation(self) -> str: ...
    async def read_probe(self, name: str) -> str: ...


class Canary:
    """Runs until it has passed; `again`, or another replica met by `verdict`, makes it run again.

    `inference` and `output_root` are what it found; `verdict` is what readiness asks.
    """

    def __init__(self, engine: Subject, profile: EngineProfile, output_root: Path) -> None:
        self._engine = engine
        self._profile = profile
        self._root = output_root
        self._proved = ""
        self._task: asyncio.Task[None] | None = None
        self.inference: Verdict = (False, "has not run yet")
        self.output_root: Verdict = (False, "not yet read by the model replica")
        self.passed = asyncio.Event()

    async def run(self) -> None:
        """Start it and wait until it has passed."""
        self._start()
        await self.passed.wait()

    def again(self, reason: str) -> None:
        """What was found holds no more; begin anew at once, also in the middle of a try."""
        self.inference = self.output_root = (False, reason)
        self._start()

    async def verdict(self) -> Verdict:
        """Whether the replica that answers now is one that passed. Serve may replace one without telling anybody."""
        if not self.inference[0]:
            return self.inference
        try:
            async with asyncio.timeout(ANSWER_S):
                now = await self._engine.incarnation()
        except TimeoutError:
            return False, f"the model replica has not answered for {ANSWER_S:g} s"
        except Cosmos3Error as error:
            return False, error.detail
        if now != self._proved and self.inference[0]:
            log.warning("model_replica_changed")
            self.again("the model replica was replaced; the canary runs again")
        return self.inference

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _start(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self.passed.clear()
        self._task = asyncio.create_task(self._until_passed())

    async def _until_passed(self) -> None:
        for attempt in range(1_000_000_000):
            try:
                before = await self._engine.incarnation()
                await self._share()
                await self._infer()
                if self.inference[0] and await self._engine.incarnation() != before:
                    self.inference = (False, "the model replica was replaced while the canary ran")
                self._proved = before
            except Exception as error:
                reason = error.detail if isinstance(error, Cosmos3Error) else type(error).__name__
                if self.inference[0]:
                    self.inference = (False, reason)
                log.warning("canary_failed", attempt=attempt + 1, reason=reason)
            if self.inference[0] and self.output_root[0]:
                self.passed.set()
                return
            await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])

    async def _share(self) -> None:
        name, nonce = f"{PRIVATE}/probe-{secrets.token_hex(8)}", secrets.token_hex(16)
        path = self._root / name
        try:
            await asyncio.to_thread(_write, path, nonce)
            seen = await self._engine.read_probe(name)
        except Exception as error:
            self.output_root = (False, f"the model replica cannot read what the ingress wrote ({type(error).__name__})")
            raise
        finally:
            await asyncio.to_thread(path.unlink, True)
        same = seen == nonce
        self.output_root = (same, "shared with the model replica" if same else "the model replica sees other files")

    async def _infer(self) -> None:
        directory = self._root / PRIVATE / f"canary-{secrets.token_hex(8)}"
        sample = SampleOverrides.model_validate(
            {"name": "canary", "model_mode": "text2image", "prompt": "a plain grey square", "resolution": "256"}
            | {"num_steps": STEPS, "num_frames": 1, "seed": 0}
        )
        resolved = resolve_sample(sample, self._profile, seed=0)
        job = EngineJob(
            request_id="canary", name="canary", output_dir=str(directory), args=resolved.model_dump(mode="json")
        )
        started = time.monotonic()
        try:
            result = await self._engine.generate(job)
            if result.error is not None:
                self.inference = (False, f"{result.error.code}: {result.error.message}")
                return
            files = [f for output in (result.outputs or {}).get("outputs", []) for f in output["files"]]
            problem = await asyncio.to_thread(_look, self._root, files)
            seconds = time.monotonic() - started
            self.inference = (False, problem) if problem else (True, f"passed in {seconds:.1f} s")
        except Exception as error:
            self.inference = (False, error.detail if isinstance(error, Cosmos3Error) else type(error).__name__)
            raise
        finally:
            await asyncio.to_thread(shutil.rmtree, directory, True)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(text)


def _look(root: Path, files: list[str]) -> str:
    """What is wrong with the canary's picture as the ingress sees it; empty when it opens."""
    if not files:
        return "the canary made no file"
    try:
        with Image.open(root / files[0]) as image:
            image.load()
    except FileNotFoundError:
        return "the ingress does not see the file that the model replica wrote"
    except Exception as error:
        return f"the canary's picture does not open ({type(error).__name__})"
    return ""
