"""Run a worker of a queue in a process of its own that can be killed at any moment, forked from a server that has the
package loaded."""

from __future__ import annotations

import json
import os
import resource
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from support.client_process import CONTEXT


def start(options: dict[str, Any], environ: dict[str, str], result: Path) -> ForkServerProcess:
    """Begin `run_queue(QueueOrder(**options))`; its outcome goes to `result` as JSON, unless it is killed before."""
    process = CONTEXT.Process(target=_main, args=(options, environ, str(result)), daemon=True)
    process.start()
    return process


def outcome(result: Path) -> dict[str, Any]:
    """`index`, or the problem and `exit_code`; always `base_kib` and `peak_kib` of the process, `cpu_s` in all and
    `ready_cpu_s` until its first part began."""
    found: dict[str, Any] = json.loads(result.read_bytes())
    return found


def _main(options: dict[str, Any], environ: dict[str, str], result: str) -> None:
    began = time.process_time()
    os.environ.clear()
    os.environ.update(environ)
    from cosmos3_serve.errors import Cosmos3Error
    from cosmos3_serve.queue.board import Figures
    from cosmos3_serve.queue.run import QueueOrder, run_queue

    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ready: list[float] = []

    class Listener:
        def figures(self, figures: Figures) -> None:
            if figures.parts_running and not ready:
                ready.append(time.process_time() - began)

        def notice(self, text: str) -> None: ...

    try:
        found: dict[str, Any] = {"index": run_queue(QueueOrder(**options), Listener())}
    except Cosmos3Error as error:
        found = error.as_problem() | {"exit_code": error.exit_code}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found |= {"base_kib": base, "peak_kib": peak, "cpu_s": time.process_time() - began}
    found["ready_cpu_s"] = ready[0] if ready else None
    path = Path(result)
    path.with_suffix(".tmp").write_text(json.dumps(found))
    path.with_suffix(".tmp").rename(path)
