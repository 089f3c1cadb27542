"""The probe's processes: real ones on real files, and bad ones that die, hang or never live."""

import asyncio
import io
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support import clips

from cosmos3_serve.errors import NotReady, ServiceFailure
from cosmos3_serve.media.refusal import Refused
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.probe import Prober
from cosmos3_serve.reasoner.media.replica import ReplicaDecoder

WORKER = "cosmos3_serve.reasoner.media.worker"


@asynccontextmanager
async def prober(module: str = "support.bad_worker", **limits: Any) -> AsyncIterator[Prober]:
    found = Prober(MediaLimits(**limits), ReplicaDecoder(), module=module)
    try:
        yield found
    finally:
        await found.close()


@pytest.fixture(autouse=True)
def bad_worker_can_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def job(folder: Path, content: str | bytes) -> tuple[Path, Path]:
    path = folder / "in"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path, folder / "out"


async def ask(found: Prober, folder: Path, content: str | bytes) -> Any:
    path, out = job(folder, content)
    return await found.probe(path, "video", out)


async def settled() -> None:
    """Let every task run until it waits for something outside."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_real_processes_pass_normalise_and_refuse(tmp_path: Path) -> None:
    async with prober(WORKER, probe_workers=1) as found:
        probed = await ask(found, tmp_path, clips.clip())
        assert (probed.info.codec, probed.info.frames, probed.served) == ("h264", 24, None)
        probed = await ask(found, tmp_path, clips.variable())
        assert probed.served is not None
        assert probed.served.size == (tmp_path / "out").stat().st_size
        with pytest.raises(Refused) as caught:
            await ask(found, tmp_path, clips.clip(frames=1))
        assert caught.value.code == "media_too_few_frames"


async def test_a_file_that_needs_too_much_memory_is_refused_and_the_next_one_served(tmp_path: Path) -> None:
    """147 MB of pixels from 150 kB, in a process that may have little more than Python and FFmpeg need."""
    bomb = io.BytesIO()
    Image.new("RGB", (7000, 7000)).save(bomb, "PNG")
    path, out = job(tmp_path, bomb.getvalue())
    async with prober(WORKER, probe_workers=1, probe_memory_bytes=240 * 2**20) as found:
        with pytest.raises(Refused) as caught:
            await found.probe(path, "image", out)
        assert (caught.value.status, caught.value.code) == (422, "media_too_complex")
        assert (await ask(found, tmp_path, clips.clip())).info.frames == 24


async def test_a_process_that_dies_costs_its_file_and_no_other(tmp_path: Path) -> None:
    async with prober(probe_workers=1) as found:
        first = (await ask(found, tmp_path, "fine")).info.codec
        assert (await ask(found, tmp_path, "fine")).info.codec == first, "the process is kept"
        with pytest.raises(Refused) as caught:
            await ask(found, tmp_path, "die")
        assert (caught.value.status, caught.value.code) == (422, "media_kills_decoder")
        assert (await ask(found, tmp_path, "fine")).info.codec != first


@pytest.mark.parametrize("word", ["hang", "late"])
async def test_a_process_that_hangs_is_killed(tmp_path: Path, word: str) -> None:
    async with prober(probe_workers=1, probe_timeout_s=0.2, normalise_timeout_s=0.2) as found:
        with pytest.raises(Refused) as caught:
            await ask(found, tmp_path, word)
        assert (caught.value.status, caught.value.code) == (422, "media_too_slow")


async def test_a_conversion_has_its_own_time(tmp_path: Path) -> None:
    async with prober(probe_workers=1, probe_timeout_s=1, normalise_timeout_s=30) as found:
        await ask(found, tmp_path, "fine")
        task = asyncio.ensure_future(ask(found, tmp_path, "late"))
        done, _ = await asyncio.wait([task], timeout=1.5)
        assert not done
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_cancelled_probe_leaves_no_process(tmp_path: Path) -> None:
    async with prober(probe_workers=1) as found:
        pid = int((await ask(found, tmp_path, "fine")).info.codec)
        task = asyncio.ensure_future(ask(found, tmp_path, "hang"))
        await settled()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert int((await ask(found, tmp_path, "fine")).info.codec) != pid


async def test_our_own_faults_are_not_the_files(tmp_path: Path) -> None:
    async with prober(probe_workers=1) as found:
        with pytest.raises(ServiceFailure) as caught:
            await ask(found, tmp_path, "fault")
        assert caught.value.stable_code == "probe_failed"
    async with prober("support.no_such_worker") as found:
        with pytest.raises(ServiceFailure, match="ends at once"):
            await ask(found, tmp_path, "fine")


async def test_no_more_processes_than_allowed_and_no_endless_queue(tmp_path: Path) -> None:
    async with prober(probe_workers=1, max_waiting=1) as found:
        tasks = [asyncio.ensure_future(ask(found, tmp_path, "hang")) for _ in range(2)]
        await settled()
        with pytest.raises(NotReady) as caught:
            await ask(found, tmp_path, "fine")
        assert caught.value.stable_code == "media_busy"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (await ask(found, tmp_path, "fine")).info.frames == 2


def test_rules_change_with_limits_and_decoders() -> None:
    def rules(limits: MediaLimits, decoder: ReplicaDecoder) -> str:
        return Prober(limits, decoder).rules

    base = rules(MediaLimits(), ReplicaDecoder())
    assert base == rules(MediaLimits(), ReplicaDecoder())
    assert base != rules(MediaLimits(drift_s=1), ReplicaDecoder())
    assert base != rules(MediaLimits(), ReplicaDecoder(codecs=frozenset({"vp9"})))
