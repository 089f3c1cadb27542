"""Refuses and writes down every connection that would leave this machine, in any Python process that imports it.

`COSMOS3_TEST_SOCKETS` names the file to write to. Look-ups of other names count too. Datagram sockets are left alone:
Ray "connects" one to learn its own address, which sends nothing.
"""

import ipaddress
import os
import socket
import sys
from pathlib import Path
from typing import Any

FILE_ENV = "COSMOS3_TEST_SOCKETS"


def watch() -> None:
    path = os.environ.get(FILE_ENV)
    if not path:
        return

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect":
            sock, address = arguments
            if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type & 0xF == socket.SOCK_STREAM:
                refuse(address[0], path)
        elif event == "socket.getaddrinfo" and arguments[0] is not None:
            host = arguments[0]
            refuse(host.decode() if isinstance(host, bytes) else str(host), path)

    sys.addaudithook(hook)


def refuse(host: str, path: str) -> None:
    if host in ("", "localhost", socket.gethostname()):
        return
    try:
        if ipaddress.ip_address(host).is_loopback or ipaddress.ip_address(host).is_unspecified:
            return
    except ValueError:
        pass
    with Path(path).open("a") as log:
        log.write(f"{os.getpid()} {host} {sys.argv[:3]}\n")
    raise PermissionError(f"the test lets no connection leave: {host}")
