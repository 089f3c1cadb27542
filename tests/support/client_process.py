"""Run the client in a process of its own that can be killed at any moment, without an interpreter start for each.

A fork server imports the client once and forks a fresh process for every run.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["cosmos3_serve.client.submit", "cosmos3_serve.storage.bucket", "PIL.Image", "av"])


def start(options: dict[str, Any], environ: dict[str, str], result: Path) -> ForkServerProcess:
    """Begin `submit_batch(**options)`; its outcome goes to `result` as JSON, unless it is killed before."""
    process = CONTEXT.Process(target=_main, args=(options, environ, str(result)), daemon=True)
    process.start()
    return process


def outcome(result: Path) -> dict[str, Any]:
    """`manifest`, or `code`, `detail`, `remedy` and `exit_code`; always `peak_kib` and `base_kib` of the process."""
    found: dict[str, Any] = json.loads(result.read_bytes())
    return found


def _main(options: dict[str, Any], environ: dict[str, str], result: str) -> None:
    os.environ.clear()
    os.environ.update(environ)
    from cosmos3_serve.client.submit import submit_batch
    from cosmos3_serve.errors import Cosmos3Error

    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        found: dict[str, Any] = {"manifest": submit_batch(**options)}
    except Cosmos3Error as error:
        found = error.as_problem() | {"exit_code": error.exit_code, "remedy": error.remedy}
    found |= {"base_kib": base, "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
    path = Path(result)
    path.with_suffix(".tmp").write_text(json.dumps(found))
    path.with_suffix(".tmp").rename(path)
