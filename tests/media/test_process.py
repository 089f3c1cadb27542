"""The process that reads media: it may die, hang or be refused a disk, and never takes its caller with it."""

import json
import os
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.media import frames, write_video

from cosmos3_serve.errors import ServiceFailure
from cosmos3_serve.media import confine
from cosmos3_serve.media.limits import ReadLimits
from cosmos3_serve.media.process import MediaReader, ReadCancelled
from cosmos3_serve.media.read import NoRoom, Want, read_media
from cosmos3_serve.media.refusal import Refused

LIMITS = ReadLimits()


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("clip") / "a.mp4", frames(12, 64, 48), fps=10)


@pytest.fixture(scope="module")
def reader():
    reader = MediaReader()
    yield reader
    reader.close()


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module that stands in for the worker: `body` runs after its greeting, for each job."""
    made: list[MediaReader] = []

    def make(body: str, **limits: float) -> MediaReader:
        text = f"""
import json, os, signal, socket, sys, time
channel = socket.socket(fileno=int(sys.argv[1]))
channel.sendall(b'{{"ready": true}}\\n')
for line in channel.makefile("rb"):
    {body}
"""
        (tmp_path / "stand_in.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.pathsep.join(sys.path)}")
        made.append(MediaReader(replace(LIMITS, **limits), module="stand_in"))
        return made[-1]

    yield make
    for reader in made:
        reader.close()


@pytest.mark.parametrize("want", [Want(), Want("video", (32, 24), 3, "last"), Want(max_frames=2)])
def test_the_same_frames_as_in_process(reader, clip, want):
    here, there = read_media(clip, want, LIMITS), reader.read(clip, want)
    assert np.array_equal(here.frames, there.frames)
    assert (here.times_s, here.fps, here.record) == (there.times_s, there.fps, there.record)


def test_refusals_and_room_come_back(reader, clip, tmp_path):
    (tmp_path / "a.mp4").write_bytes(clip.read_bytes()[:900])
    with pytest.raises(Refused) as caught:
        reader.read(tmp_path / "a.mp4", Want())
    assert caught.value.code == "media_truncated" and caught.value.remedy
    with pytest.raises(NoRoom):
        reader.read(clip, Want(room=10))
    with pytest.raises(ServiceFailure, match="No such file") as gone:
        reader.read(tmp_path / "none.mp4", Want())
    assert gone.value.stable_code == "media_reader_failed" and str(tmp_path) not in gone.value.detail
    assert len(reader.read(clip, Want()).frames) == 12


def test_frames_outlive_the_process_that_decoded_them(clip):
    reader = MediaReader()
    found = reader.read(clip, Want())
    reader.close()
    assert found.frames.mean() > 0


def test_a_process_that_dies_of_a_file_is_the_files_fault_and_the_next_read_has_another(worker):
    reader = worker("os.kill(os.getpid(), signal.SIGKILL)")
    for _ in range(2):
        with pytest.raises(Refused) as caught:
            reader.read(Path("x.mp4"), Want())
        assert caught.value.code == "media_kills_decoder"


def test_a_file_that_takes_too_long_is_refused_with_the_number(worker):
    reader = worker("time.sleep(600)", timeout_s=0.5)
    with pytest.raises(Refused, match=r"within 0\.5 s") as caught:
        reader.read(Path("x.mp4"), Want())
    assert caught.value.code == "media_too_slow"


def test_a_cancelled_read_ends_its_process(worker):
    reader = worker("time.sleep(600)")
    asked = threading.Event()

    def cancelled() -> bool:
        asked.set()
        return True

    with pytest.raises(ReadCancelled):
        reader.read(Path("x.mp4"), Want(), cancelled)
    assert asked.is_set() and not reader._busy and not reader._free


def test_closing_ends_reads_that_run(worker):
    reader = worker("time.sleep(600)")
    ended: list[BaseException] = []

    def read() -> None:
        try:
            reader.read(Path("x.mp4"), Want())
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    until = time.monotonic() + 60
    while not (reader._busy and next(iter(reader._busy))._channel) and time.monotonic() < until:
        time.sleep(0.01)
    reader.close()
    thread.join(60)
    assert [type(error) for error in ended] == [ReadCancelled]


def test_a_module_that_cannot_start_is_our_fault():
    with pytest.raises(ServiceFailure) as caught:
        MediaReader(module="no_such_module").read(Path("x.mp4"), Want())
    assert caught.value.stable_code == "media_reader_failed"


def test_the_process_sees_no_credentials():
    secrets = {"AWS_SECRET_ACCESS_KEY": "k", "HF_TOKEN": "t", "HTTPS_PROXY": "p"}
    seen = confine.environ({"PATH": "/bin", "LANG": "C", **secrets})
    assert set(seen) & {"PATH", "LANG"} and not set(secrets) & set(seen)


def test_the_process_that_reads_has_that_environment_and_no_network(worker):
    body = (
        "from cosmos3_serve.media.confine import confine; taken = confine(memory_bytes=1 << 33, file_bytes=1 << 20)\n"
        "    names = sorted(os.environ) + [str(taken), str(len(socket.if_nameindex()))]\n"
        "    refused = {'status': 422, 'code': 'x', 'message': ' '.join(names)}\n"
        "    channel.sendall(json.dumps({'refused': refused}).encode() + b'\\n')"
    )
    os.environ["AWS_SECRET_ACCESS_KEY"] = "k"
    try:
        with pytest.raises(Refused) as caught:
            worker(body).read(Path("x.mp4"), Want())
    finally:
        del os.environ["AWS_SECRET_ACCESS_KEY"]
    *names, taken, interfaces = caught.value.message.split()
    assert "AWS_SECRET_ACCESS_KEY" not in names and "PATH" in names
    assert taken == "False" or interfaces == "1"  # loopback alone, and that is down


def test_a_read_that_needs_too_much_memory_is_refused(tmp_path):
    Image.new("L", (6000, 6000)).save(tmp_path / "a.png")
    reader = MediaReader(replace(LIMITS, memory_bytes=600 * 1024**2))
    try:
        with pytest.raises(Refused) as caught:
            reader.read(tmp_path / "a.png", Want(size=(8000, 8000)))
    finally:
        reader.close()
    assert caught.value.code in ("media_too_complex", "media_kills_decoder")


def test_answers_may_come_in_pieces(worker):
    body = (
        "data = json.dumps({'refused': {'status': 422, 'code': 'x', 'message': 'm' * 300000}}).encode() + b'\\n'\n"
        "    [channel.sendall(data[i:i + 50000]) for i in range(0, len(data), 50000)]"
    )
    with pytest.raises(Refused) as caught:
        worker(body).read(Path("x.mp4"), Want())
    assert len(caught.value.message) == 300000 and json and socket
