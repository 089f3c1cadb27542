"""A real local Dynamo: two `dynamo.vllm` CPU workers, and a frontend for each routing profile over the same workers.

The engines get the settings that our own replicas get on this machine, so that what differs is what serves them. Needs
a Python that has both `ai-dynamo` 1.6.1 and the vLLM that it pins (see benchmarks/README.md).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from measure.dynamo_frontend import PYTHON_ENV, end, free_port, instances, loopback
from measure.result import InvalidRun, demand

from cosmos3_serve.reasoner.engine.args import engine_plan
from cosmos3_serve.reasoner.engine.hardware import detect
from cosmos3_serve.reasoner.engine.model_shape import read_shape
from cosmos3_serve.reasoner.setup import MODEL_NAME
from cosmos3_serve.service.reaper import descendants, start_time
from cosmos3_serve.settings import ReasonerSettings

ASK = (
    "from importlib.metadata import version as v; import vllm; "
    "print(v('ai-dynamo'), 'with vLLM', vllm.__version__.split('+')[0])"
)
ASK_S = 240.0
START_S = 420.0
# Of our server's arguments, those that are no argument of the engine.
OF_THE_SERVER = {
    "--enable-prompt-tokens-details": 0,
    "--disable-uvicorn-access-log": 0,
    "--disable-fastapi-docs": 0,
    "--trust-request-mm-kwargs": 0,
    "--allowed-media-domains": 1,
    "--max-num-queued-reqs": 1,
}
ROUTING = {
    "round-robin": ["--router-mode", "round-robin"],
    "session-affinity": ["--router-mode", "round-robin", "--router-session-affinity-ttl-secs", "300"],
}


def find() -> tuple[Path, str] | None:
    """The Python named by the environment, and the versions there.

    Raises:
        InvalidRun: it cannot import vLLM; with what it said.
    """
    name = os.environ.get(PYTHON_ENV)
    if not name:
        return None
    try:
        asked = subprocess.run([name, "-c", ASK], capture_output=True, text=True, timeout=ASK_S, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidRun(f"{PYTHON_ENV} cannot be run: {type(error).__name__}") from None
    said = (asked.stderr.strip().splitlines() or ["nothing"])[-1][:300]
    demand(asked.returncode == 0, f"{PYTHON_ENV} names a Python without ai-dynamo and vLLM: {said}")
    return Path(name), asked.stdout.strip().splitlines()[-1]


def engine(model: Path, workers: int) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of our own replicas' engines, less what is the server's."""
    plan = engine_plan(read_shape(model), ReasonerSettings.load({"workers": workers}), detect(), (0, 31))
    words, kept = iter(plan.argv), list[str]()
    for word in words:
        if word in OF_THE_SERVER:
            for _ in range(OF_THE_SERVER[word]):
                next(words)
        else:
            kept.append(word)
    return kept, dict(plan.env)


class DynamoFleet:
    """`launch`, then `wait`; `stop` in any case.

    Args:
        frames: how many of a clip are handed to the model's processor; -1: all, as plain vLLM does for this model.
            Dynamo's own default is 32, which would be another question than the one that the other system is asked.
    """

    def __init__(self, python: Path, folder: Path, model: Path, *, workers: int = 2, frames: int = -1) -> None:
        self._python, self._folder, self._model = python, folder, model
        self._workers, self._frames = workers, frames
        self._processes: list[subprocess.Popen[bytes]] = []
        self.ports = {profile: free_port() for profile in ROUTING}

    def url(self, profile: str) -> str:
        return f"http://127.0.0.1:{self.ports[profile]}"

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def commands(self) -> list[list[str]]:
        """Frontends, then workers."""
        argv, _ = engine(self._model, self._workers)
        served = ["--model", str(self._model), "--served-model-name", MODEL_NAME, "--enable-multimodal"]
        fronts = [
            ["dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port), *ROUTING[profile]]
            for profile, port in self.ports.items()
        ]
        return [*fronts, *(["dynamo.vllm", *served, *argv] for _ in range(self._workers))]

    def environ(self) -> dict[str, str]:
        _, env = engine(self._model, self._workers)
        # What vLLM finds out about a model's class is kept, as it is for our own replicas.
        kept = {"VLLM_CACHE_ROOT": str(self._model.parent / "vllm-of-dynamo"), "DYN_LOG": "warn"}
        return loopback(self._folder) | env | kept | {"DYN_MM_VIDEO_NUM_FRAMES": str(self._frames)}

    def launch(self) -> Self:
        """Start everything and return at once."""
        self._folder.mkdir(parents=True, exist_ok=True)
        environ = self.environ()
        for number, command in enumerate(self.commands()):
            with (self._folder / f"{command[0]}-{number}.log").open("ab") as log:
                line = [str(self._python), "-m", *command]
                self._processes.append(subprocess.Popen(line, env=environ, cwd=self._folder, stdout=log, stderr=log))
        return self

    def wait(self, seconds: float = START_S) -> Self:
        """Until both frontends see every worker.

        Raises:
            InvalidRun: a process ended, or they were not ready in time; with the end of the logs.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            ended = [n for n, p in enumerate(self._processes) if p.poll() is not None]
            demand(not ended, f"a process of Dynamo ended: {self.last_words()}")
            if all(instances(port) >= self._workers for port in self.ports.values()):
                return self
            time.sleep(0.5)
        raise InvalidRun(f"Dynamo was not ready in {seconds:.0f} s: {self.last_words()}")

    def last_words(self) -> str:
        """The last line of each log that says an error, else its last line; no place of this machine in it."""
        found = []
        for log in sorted(self._folder.glob("*.log")):
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            errors = [line for line in lines if "Error" in line]
            if lines:
                said = (errors or lines)[-1].replace(str(self._folder), "…").replace(str(self._model), "MODEL")
                found.append(f"{log.stem}: {said[-300:]}")
        return " | ".join(found)

    def stop(self) -> None:
        """End everything, engines that a worker left behind as well."""
        children = [child for pid in self.pids for child in descendants(pid)]
        end(self._processes)
        for pid, born in children:
            if start_time(pid) == born:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
