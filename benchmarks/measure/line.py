"""A long line to a local port: every piece of bytes arrives `--delay-ms` after it was sent, either way. As a module:

python -m measure.line --to 9000 --delay-ms 10     prints its own port

Bytes pass through pipes in the kernel and are never copied into Python, so the line takes next to nothing of the cores.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import queue
import socket
import threading
import time
from contextlib import suppress

PIECE_BYTES = 1024 * 1024  # the largest pipe that an unprivileged process may have
IN_FLIGHT = 16  # pieces each way on one connection


def one_way(source: socket.socket, sink: socket.socket, delay_s: float) -> None:
    """Pass bytes until either end closes, later pieces not held up by earlier ones."""
    under_way: queue.Queue[tuple[float, int, int, int]] = queue.Queue(IN_FLIGHT)
    spare: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    broken = threading.Event()

    def send() -> None:
        while True:
            due, inlet, outlet, count = under_way.get()
            if not count:
                with suppress(OSError):
                    sink.shutdown(socket.SHUT_WR)
                return
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                while count and not broken.is_set():
                    count -= os.splice(outlet, sink.fileno(), count)
            except OSError:
                broken.set()
                with suppress(OSError):
                    source.shutdown(socket.SHUT_RD)
            spare.put((inlet, outlet))

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    pipes = []
    try:
        while True:
            try:
                inlet, outlet = spare.get_nowait()
            except queue.Empty:
                outlet, inlet = os.pipe()
                fcntl.fcntl(inlet, fcntl.F_SETPIPE_SZ, PIECE_BYTES)
                pipes.append((inlet, outlet))
            count = os.splice(source.fileno(), inlet, PIECE_BYTES)
            under_way.put((time.monotonic() + delay_s, inlet, outlet, count))
            if not count:
                return
    except OSError:
        under_way.put((0.0, 0, 0, 0))
    finally:
        sender.join()
        for pipe in pipes:
            os.close(pipe[0])
            os.close(pipe[1])


def carry(near: socket.socket, port: int, delay_s: float) -> None:
    with near, socket.create_connection(("127.0.0.1", port)) as far:
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=one_way, args=(far, near, delay_s), daemon=True)
        back.start()
        one_way(near, far, delay_s)
        back.join()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--to", type=int, required=True, help="local port at the far end")
    options.add_argument("--delay-ms", type=float, required=True, help="each way")
    chosen = options.parse_args()
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            near, _ = server.accept()
            threading.Thread(target=carry, args=(near, chosen.to, chosen.delay_ms / 1000), daemon=True).start()


if __name__ == "__main__":
    main()
