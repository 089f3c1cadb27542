"""Probe: one authenticated question to the service of this machine, for container health checks and exec probes.

`cosmos3-probe generator` asks `GET /health`, `--path /ready` asks for readiness. It runs every few seconds beside a
busy service, so it imports the standard library only, reads no body, and ends within `--timeout` whatever the peer
does. The names below are those of `settings/`, which would import pydantic; a test compares them.
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

OK, NOT_OK = 0, 1
MAX_FILE_BYTES = 1024 * 1024
EVERY_ADDRESS = ("", "0.0.0.0", "::")


class Names(NamedTuple):
    """Environment variables of one service."""

    host: str
    port: str
    token: str
    token_file: str


SERVICES = {
    "generator": Names(
        "NPA_COSMOS3_RAY_HOST", "NPA_COSMOS3_RAY_PORT", "NPA_COSMOS3_RAY_TOKEN", "NPA_COSMOS3_RAY_TOKEN_FILE"
    ),
    "reasoner": Names(
        "COSMOS3_REASONER_HOST", "COSMOS3_REASONER_PORT", "COSMOS3_REASONER_TOKEN", "COSMOS3_REASONER_TOKEN_FILE"
    ),
}
DEFAULT_PORT = "8000"


class Unanswered(Exception):
    """Why there is no 200; one line, without a token in it."""


def ask(service: str, path: str, *, port: int | None, timeout_s: float, environ: Mapping[str, str]) -> None:
    """
    Raises:
        Unanswered: no token, no answer in time, or another status than 200.
    """
    names = SERVICES[service]
    host = environ.get(names.host, "").strip()
    number = str(port) if port is not None else environ.get(names.port, "").strip() or DEFAULT_PORT
    if not (number.isascii() and number.isdigit() and 0 < int(number[:6]) < 65536):
        raise Unanswered(f"{names.port} is no port to ask")
    token = token_of(names, environ)
    connection = http.client.HTTPConnection(
        "127.0.0.1" if host in EVERY_ADDRESS else host, int(number), timeout=timeout_s
    )
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}", "Connection": "close"})
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise Unanswered(f"GET {path} was not answered ({type(error).__name__})") from None
    finally:
        connection.close()
    if status != 200:
        raise Unanswered(f"GET {path} was answered with {status}")


def token_of(names: Names, environ: Mapping[str, str]) -> str:
    """The environment's token, else the first of the file (`name:token` a line). Raises Unanswered."""
    token = environ.get(names.token, "").strip()
    file = environ.get(names.token_file, "").strip()
    if not token and file:
        try:
            with Path(file).open("rb") as opened:
                text = opened.read(MAX_FILE_BYTES).decode("utf-8", "replace")
        except OSError as error:
            raise Unanswered(f"the file of {names.token_file} cannot be read ({type(error).__name__})") from None
        lines = (line.strip() for line in text.splitlines())
        token = next((line.partition(":")[2].strip() for line in lines if line and not line.startswith("#")), "")
    if not token:
        raise Unanswered(f"neither {names.token} nor the file of {names.token_file} holds a token")
    if not (token.isascii() and token.isprintable()):
        raise Unanswered("the token holds characters that no token may have")
    return token


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 for an answer of 200, 1 for anything else (2: wrong usage)."""
    parser = argparse.ArgumentParser(prog="cosmos3-probe", description="Ask the service of this machine how it is.")
    parser.add_argument("service", choices=SERVICES)
    parser.add_argument("--path", default="/health", choices=("/health", "/ready"))
    parser.add_argument("--port", type=int, help="default: the service's variable, else 8000")
    parser.add_argument("--timeout", type=float, default=8.0, help="seconds for everything (default: 8)")
    given = parser.parse_args(argv)
    if not 0 < given.timeout <= 600:
        parser.error("--timeout must be more than 0 and at most 600")
    # A peer that sends a byte now and then would outlive the socket's own timeout.
    signal.signal(signal.SIGALRM, _too_late)
    signal.setitimer(signal.ITIMER_REAL, given.timeout)
    try:
        ask(given.service, given.path, port=given.port, timeout_s=given.timeout, environ=os.environ)
    except (Unanswered, TimeoutError) as why:
        print(why or "no answer in time", file=sys.stderr)
        return NOT_OK
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return OK


def _too_late(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError


def console() -> NoReturn:
    sys.exit(main())


if __name__ == "__main__":
    console()
