"""AIPerf as the load: its own environment, one process a level, its records turned into ours.

Source of the command and its traps: the published workflow, and runs of AIPerf 0.13.0 against recording servers.
Questions of one session go out in order, each on its own; one id a session is sent in `X-Correlation-ID`, and with the
variable below in `X-Dynamo-Session-ID` as well.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cosmos3_serve.bench.findings import refuse
from cosmos3_serve.bench.load import text_of
from cosmos3_serve.bench.proxy import recording_proxy
from cosmos3_serve.bench.records import SESSION_HEADER, Request, Workload
from cosmos3_serve.bench.seen import above_text
from cosmos3_serve.bench.validity import of_session
from cosmos3_serve.errors import ServiceFailure, UsageError

VERSION = "0.13.0"
ENVIRONMENT = Path(".venv-aiperf")
SESSION_VARIABLE = "AIPERF_HTTP_X_DYNAMO_SESSION_ID_FROM_CORRELATION_ID"
EXPORT, DATASET, SUMMARY = "profile_export.jsonl", "questions.jsonl", "profile_export_aiperf.csv"
MAX_SUMMARY = 64 * 1024  # characters
LEVEL_TIMEOUT_S = 6 * 3600.0
SETUP_TIMEOUT_S = 1800.0
VERSION_TIMEOUT_S = 120.0
_VERSION = re.compile(r"(?<![\w.])v?(\d+\.\d+\.\d+[\w.+-]*)")


class AIPerfLoad:
    """
    Args:
        program: of the environment that `set_up` made.
        tokenizer: a directory or Hub id; AIPerf wants one even where the server counts the tokens.
        part: the URL of each video by name.
        folder: where AIPerf's own files of each level are kept.
        text_tokens: of a prompt without a video; what a prompt has above that is the video's.
    """

    name = "AIPerf"  # with the version that it tells, once `prove` has asked

    def __init__(
        self, program: Path, tokenizer: str, workload: Workload, *, base_url: str, token: str, model: str,
        part: Mapping[str, str], folder: Path, text_tokens: int,
    ) -> None:  # fmt: skip
        self._program, self._tokenizer, self._work = program, tokenizer, workload
        self._base, self._token, self._model = base_url, token, model
        self._part, self._folder, self._text_tokens = part, folder, text_tokens
        self._headers: tuple[str, ...] = ()
        self.summary = ""
        self.proof: str | None = None

    async def prove(self) -> None:
        """One question without a video through a recording proxy: which headers this AIPerf really sends.

        Raises:
            UsageError: another version of AIPerf (code `aiperf_version`).
            Refusal: the server took no session from the header, or kept one in round robin (code `run_invalid`). AIPerf
                does not write down what the server answers of sessions, so that no check after the run could see it.
        """
        self.name = f"AIPerf {await asyncio.to_thread(require_version, self._program)}"
        with recording_proxy(self._base) as (url, recorded):
            await self._process(url, {"text": ""}, self._folder / "proof", concurrency=1, questions=1, timeout_s=600)
        self._headers = tuple(sorted(name for name in recorded.names() if name.startswith("x-")))
        said = (answer.get("x-cosmos3-session") for answer in recorded.answers)
        self.proof = next((state for state in said if state is not None), None)
        refuse(list(of_session(self._work, self.proof)))

    async def level(
        self, videos: Sequence[str], *, concurrency: int, repeat: int, done: Callable[[], None] = lambda: None
    ) -> list[Request]:
        """Run one level and read its records. Cancelling ends the process.

        Raises:
            ServiceFailure: AIPerf failed or left no record (code `aiperf_failed`), with its last lines.
        """
        folder = self._folder / f"c{concurrency}-r{repeat}"
        parts = {video: self._part[video] for video in videos}
        await self._process(self._base, parts, folder, concurrency=concurrency, questions=self._work.questions,
                            timeout_s=LEVEL_TIMEOUT_S)  # fmt: skip
        with (folder / EXPORT).open(encoding="utf-8") as lines:
            found = records(lines, self._work, concurrency=concurrency, repeat=repeat, headers=self._headers,
                            text_tokens=self._text_tokens)  # fmt: skip
        for _ in found:
            done()
        self.summary = await asyncio.to_thread(summary, folder)
        return found

    async def _process(
        self,
        base_url: str,
        parts: Mapping[str, str],
        folder: Path,
        *,
        concurrency: int,
        questions: int,
        timeout_s: float,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / EXPORT).unlink(missing_ok=True)  # what another run left must not pass for this one's
        await asyncio.to_thread(write_dataset, folder / DATASET, parts, questions, self._work.output_tokens)
        command = self.command(len(parts), base_url=base_url, concurrency=concurrency, folder=folder)
        log = folder / "aiperf.log"
        with log.open("wb") as output:
            # AIPerf takes the key as an argument: whoever may list the machine's processes sees it.
            process = await asyncio.create_subprocess_exec(
                *command, "--api-key", self._token or "none", stdout=output, stderr=output, env=environment(self._work)
            )
            try:
                code = await asyncio.wait_for(process.wait(), timeout_s)
            except TimeoutError:
                raise ServiceFailure(f"AIPerf did not end in {timeout_s:.0f} s", code="aiperf_failed") from None
            finally:
                if process.returncode is None:
                    process.terminate()
                    await process.wait()
        if code or not (folder / EXPORT).exists():
            tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-8:]
            raise ServiceFailure(f"AIPerf ended with {code}: {' | '.join(tail)[-600:]}", code="aiperf_failed")

    def command(self, sessions: int, *, base_url: str, concurrency: int, folder: Path) -> list[str]:
        """The command line without the key, which must not stand in a report."""
        return [
            str(self._program), "profile", "--model", self._model, "--url", base_url, "--endpoint-type", "chat",
            "--streaming", "--tokenizer", self._tokenizer, "--input-file", str(folder / DATASET),
            "--custom-dataset-type", "single-turn", "--concurrency", str(concurrency),
            "--num-conversations", str(sessions), "--extra-inputs", "ignore_eos:true",
            "--extra-inputs", "temperature:0", "--use-server-token-count", "--ui", "none",
            "--output-artifact-dir", str(folder),
        ]  # fmt: skip


def summary(folder: Path) -> str:
    """AIPerf's own table of a level, as it wrote it; empty where it wrote none."""
    try:
        with (folder / SUMMARY).open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_SUMMARY)
    except OSError:
        return ""


def find(environment_dir: Path, tokenizer: str) -> Path:
    """The program. Blocking.

    Raises:
        UsageError: it is not installed (code `no_aiperf`), of another version (`aiperf_version`), or no tokenizer was
            named.
    """
    program = environment_dir / "bin" / "aiperf"
    if not program.exists():
        raise UsageError(
            f"AIPerf is not in {environment_dir}", code="no_aiperf", remedy="cosmos3 bench setup, or --load own"
        )
    if not tokenizer:
        raise UsageError("AIPerf wants a tokenizer", remedy="--tokenizer with the model's directory or Hub id")
    require_version(program)
    return program


def require_version(program: Path) -> str:
    """The version that this AIPerf tells of itself, which is the one whose records we can read. Blocking, seconds.

    Raises:
        UsageError: another one, or none that could be read (code `aiperf_version`).
    """
    try:
        asked = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S)
        found = _VERSION.search(asked.stdout) if asked.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired):
        found = None
    version = found[1] if found else "unknown"
    if version != VERSION:
        raise UsageError(
            f"{program} is AIPerf {version}; records of {VERSION} are what can be read",
            code="aiperf_version",
            remedy="cosmos3 bench setup --aiperf-dir with a new directory, and the same for the run; or --load own",
        )
    return version


def set_up(environment_dir: Path, python: str = sys.executable) -> Path:
    """Make the environment (about 1.2 GB), or leave it if it is there. Blocking, minutes.

    Raises:
        ServiceFailure: pip failed (code `aiperf_not_installed`).
        UsageError: what is there is of another version (code `aiperf_version`).
    """
    program = environment_dir / "bin" / "aiperf"
    if program.exists():
        require_version(program)
        return program
    for command in (
        [python, "-m", "venv", str(environment_dir)],
        [str(environment_dir / "bin" / "python"), "-m", "pip", "install", "--quiet", f"aiperf=={VERSION}"],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SETUP_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ServiceFailure(f"AIPerf was not installed: {error}", code="aiperf_not_installed") from None
        if done.returncode:
            tail = " | ".join(done.stderr.strip().splitlines()[-4:])
            raise ServiceFailure(f"AIPerf was not installed: {tail[-600:]}", code="aiperf_not_installed")
    return program


def environment(workload: Workload) -> dict[str, str]:
    """The variables of the process: the header of the profile, and nothing that stops a local tokenizer."""
    kept = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", SESSION_VARIABLE)}
    if workload.profile == "session-affinity":
        if workload.session_header.lower() != SESSION_HEADER.lower():
            raise UsageError(f"AIPerf sends sessions in {SESSION_HEADER} only", remedy="--load own for another header")
        kept[SESSION_VARIABLE] = "1"
    return kept


def write_dataset(path: Path, parts: Mapping[str, str], questions: int, output_tokens: int) -> None:
    """One line a question, in the order in which the questions of a session go out; an empty URL is no video."""
    with path.open("w", encoding="utf-8") as file:
        for video, url in parts.items():
            for turn in range(questions):
                line = {"session_id": video, "text": text_of(turn), "output_length": output_tokens}
                file.write(json.dumps(line | ({"video": url} if url else {})) + "\n")


def records(
    lines: Iterable[str],
    workload: Workload,
    *,
    concurrency: int,
    repeat: int,
    headers: tuple[str, ...],
    text_tokens: int,
) -> list[Request]:
    """AIPerf's export, one line a request, as our records. Seconds of one clock, as AIPerf's worker took them.

    Args:
        headers: what a recording proxy saw of this AIPerf.
    """
    affinity = workload.profile == "session-affinity"
    arrived = workload.session_header.lower() in headers
    found = []
    for line in lines:
        entry = json.loads(line)
        meta, metrics = entry["metadata"], entry.get("metrics") or {}
        error = entry.get("error")
        started = meta["request_start_ns"] / 1e9
        ttft, latency = _value(metrics, "time_to_first_token"), _value(metrics, "request_latency")
        prompt = _value(metrics, "usage_prompt_tokens")
        ended = started + latency / 1000 if latency is not None else meta["request_end_ns"] / 1e9
        found.append(
            Request(
                repeat=repeat,
                concurrency=concurrency,
                video=meta["conversation_id"],
                turn=meta["turn_index"],
                session=meta["x_correlation_id"] if affinity else None,
                headers=headers,
                header_seen=arrived if affinity else None,
                started=started,
                first=None if ttft is None else started + ttft / 1000,
                last=ended if ttft is not None else None,
                ended=ended,
                status=None if error else 200,
                error=None if not error else f"{error.get('type')}: {str(error.get('message'))[:200]}",
                prompt_tokens=_whole(prompt),
                output_tokens=_whole(_value(metrics, "usage_completion_tokens")),
                cached_tokens=_whole(_value(metrics, "usage_prompt_cache_read_tokens")),
                video_tokens=above_text(prompt, text_tokens),
            )
        )
    return found


def _value(metrics: Mapping[str, Any], name: str) -> float | None:
    value = (metrics.get(name) or {}).get("value")
    return float(value) if isinstance(value, int | float) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
