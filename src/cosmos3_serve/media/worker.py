"""The process that opens media, so that a hostile file can crash, hang or fill only this process.

`serve` answers one job after another over a socket: a JSON line in, a JSON line out, with a file descriptor where the
answer is pixels. Each service names its own jobs; this module's are `read_media`'s:

    in   {"path", "want": {…}}
    out  {"shape", "times_s", "fps", "record"} and a memory file with the frames, or
         {"refused"}, {"no_room"}, or {"fault"}: ours, not the file's
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from cosmos3_serve.media.confine import confine
from cosmos3_serve.media.limits import ReadLimits
from cosmos3_serve.media.refusal import COMMAND, Refused, broken

Tell = Callable[[dict[str, Any]], None]
# A job and a way to tell something before its answer; the answer, and the descriptor that goes with it.
Answer = Callable[[dict[str, Any], Tell], tuple[dict[str, Any], int | None]]
READY = {"ready": True}
GRACE_S = 10.0  # beyond a job's time: then nobody waits for it any more


def serve(channel: socket.socket, answer: Answer, *, timeout_s: float, memory_bytes: int, file_bytes: int) -> None:
    """Answer jobs until the other end closes."""
    _silence()
    confine(memory_bytes=memory_bytes, file_bytes=file_bytes)
    import av

    av.logging.set_level(av.logging.PANIC)

    def say(message: dict[str, Any], descriptor: int | None = None) -> None:
        data = json.dumps(message).encode() + b"\n"
        if descriptor is None:
            channel.sendall(data)
        else:
            sent = socket.send_fds(channel, [data], [descriptor])
            channel.sendall(data[sent:])
            os.close(descriptor)

    say(READY)
    for line in channel.makefile("rb"):
        signal.setitimer(signal.ITIMER_REAL, timeout_s + GRACE_S)  # an orphan ends, too
        say(*guarded(answer, json.loads(line), say))
        signal.setitimer(signal.ITIMER_REAL, 0)


def guarded(answer: Answer, job: dict[str, Any], tell: Tell) -> tuple[dict[str, Any], int | None]:
    """`answer`, with every failure as a refusal or, where the disk is at fault, as ours."""
    try:
        return answer(job, tell)
    except Refused as refused:
        return {"refused": refused.as_dict()}, None
    except MemoryError:
        return {
            "refused": broken("media_too_complex", "opening the file takes too much memory", COMMAND).as_dict()
        }, None
    except OSError as error:
        return {"fault": os.strerror(error.errno) if error.errno else type(error).__name__}, None
    except Exception as error:  # whatever a decoder's binding trips over is the file's fault, not the request's end
        name = type(error).__name__
        return {"refused": broken("media_corrupt", f"the file cannot be read ({name})", COMMAND).as_dict()}, None


def _silence() -> None:
    """Decoders chat on stdout and stderr."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


class _Frames:
    """Frames in a memory file that another process can map."""

    def __init__(self) -> None:
        self.descriptor: int | None = None

    def allocate(self, shape: tuple[int, ...]) -> Any:
        import numpy as np

        size = 1
        for side in shape:
            size *= side
        self.descriptor = os.memfd_create("frames")
        os.ftruncate(self.descriptor, size)
        return np.frombuffer(mmap.mmap(self.descriptor, size), dtype=np.uint8).reshape(shape)

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)


def reader(limits: ReadLimits) -> Answer:
    """The jobs of `read_media`."""
    from pathlib import Path

    from cosmos3_serve.media.read import NoRoom, Want, read_media

    def answer(job: dict[str, Any], _tell: Tell) -> tuple[dict[str, Any], int | None]:
        want = Want(**{**job["want"], "size": tuple(job["want"]["size"]) if job["want"]["size"] else None})
        frames = _Frames()
        try:
            media = read_media(Path(job["path"]), want, limits, allocate=frames.allocate)
        except NoRoom:
            frames.close()
            return {"no_room": True}, None
        except BaseException:
            frames.close()
            raise
        told = {"shape": list(media.frames.shape), "times_s": list(media.times_s), "fps": media.fps}
        return {**told, "record": media.record.as_dict()}, frames.descriptor

    return answer


def main() -> None:
    """Args: the descriptor of the socket, and the limits as JSON."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    limits = ReadLimits(**json.loads(sys.argv[2]))
    serve(
        channel,
        reader(limits),
        timeout_s=limits.timeout_s,
        memory_bytes=limits.memory_bytes,
        file_bytes=limits.max_kept_bytes,
    )


if __name__ == "__main__":
    main()
