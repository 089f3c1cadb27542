"""The two doors of the client: `submit_batch` for everybody, `submit_batch_async` for those who have an event loop."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cosmos3_serve.client import outcome
from cosmos3_serve.client.progress import Progress, Silent
from cosmos3_serve.client.resume import resume as resume_run
from cosmos3_serve.client.signals import until_signal
from cosmos3_serve.client.submission import CONCURRENCY, SPOOL_BYTES, Order, Submission
from cosmos3_serve.contract.wire import FRAMEWORK_REVISION
from cosmos3_serve.errors import Interrupted, UsageError
from cosmos3_serve.settings import TOKEN_ENV

SETTLE_S = 5.0  # a run that was posted ends by itself at the deadline, and then brings its journal in line

__all__ = ["Order", "Progress", "submit_batch", "submit_batch_async"]


def submit_batch(
    *,
    input_path: str,
    output_path: str,
    endpoint: str = "",
    token_env: str = TOKEN_ENV,
    timeout: float | None = None,
    run_id: str = "",
    dry_run: bool = False,
    resume: bool = False,
    expected_revision: str = FRAMEWORK_REVISION,
    allow_partial: bool = False,
    journal_dir: Path | str | None = None,
    progress: Progress | None = None,
    concurrency: int = CONCURRENCY,
    spool_bytes: int = SPOOL_BYTES,
) -> dict[str, Any]:
    """Submit a batch, wait for it, verify everything, publish it; the baseline's call and return, and more.

    Args:
        input_path: JSON file or s3:// object: `{"samples": […]}` or a list of samples.
        output_path: s3://bucket/prefix/ or an absolute directory; never one that holds another batch.
        endpoint: http(s)://host:port; empty: `NPA_COSMOS3_RAY_ENDPOINT`.
        token_env: name of the environment variable that holds the bearer token.
        timeout: seconds for the whole submission, one deadline; default: it follows from the samples of the batch.
        run_id: recorded in the provenance; with `resume` and without `output_path` it names the run.
        dry_run: check the input and return the plan; nothing is sent and no token is needed.
        resume: continue the unfinished run of this output path; a complete publication is verified and returned.
        expected_revision: the framework revision that the service must report.
        allow_partial: publish what succeeded, with status `partial`.
        journal_dir: where unfinished runs and the spool live; default: the user's state folder.
        progress: listener; default: only warnings, to the log.
        concurrency: downloads at once. Memory grows by some MiB for each.
        spool_bytes: most bytes of artifacts on the local disk at once.

    Returns:
        The manifest (the content of provenance.json), or the plan with `dry_run`.

    Raises:
        InputError: exit code 2: the caller can fix it (`UsageError`, `ValidationFailed`, `Conflict`, …).
        Refusal: exit code 3: a check says no (`NotReady`, `Unauthorized`, `QueueFull`, …).
        ServiceFailure: exit code 4 (`Cosmos3RayServeError`, `ContractViolation`, `IntegrityError`, …).
        Incomplete: exit code 5: `resume` continues it; `Interrupted` (130) after Ctrl-C or SIGTERM.
    """
    order = Order(
        input_path=input_path,
        output_path=output_path,
        endpoint=endpoint,
        token_env=token_env,
        timeout=timeout,
        run_id=run_id,
        dry_run=dry_run,
        resume=resume,
        expected_revision=expected_revision,
        allow_partial=allow_partial,
        journal_dir=Path(journal_dir) if journal_dir is not None else None,
        concurrency=concurrency,
        spool_bytes=spool_bytes,
    )
    if _loop_runs():
        # A notebook's loop stays its own.
        with ThreadPoolExecutor(max_workers=1) as pool:
            return pool.submit(asyncio.run, submit_batch_async(order, progress)).result()
    submission = _submission(order, progress)

    def interrupted() -> Interrupted:
        return outcome.interrupted(submission.journal, submission.resume_command)

    return asyncio.run(until_signal(_execute(submission), interrupted))


async def submit_batch_async(order: Order, progress: Progress | None = None) -> dict[str, Any]:
    """As `submit_batch`, on the caller's loop. Cancelling it leaves a run that `resume` continues."""
    return await _execute(_submission(order, progress))


def _submission(order: Order, progress: Progress | None) -> Submission:
    if order.timeout is not None and not (0 < order.timeout < float("inf")):
        raise UsageError("the timeout is not a positive number of seconds", remedy="give --timeout at least 1")
    if order.concurrency < 1 or order.spool_bytes < 1:
        raise UsageError("concurrency and spool size should be at least 1", remedy="leave them out")
    if order.resume and order.dry_run:
        raise UsageError("a dry run cannot resume anything", remedy="leave out --dry-run or --resume")
    return Submission(order, progress or Silent(), os.environ)


async def _execute(submission: Submission) -> dict[str, Any]:
    """Run it; what comes before the POST (input, output location, readiness) is under the same deadline."""
    try:
        async with asyncio.timeout(submission.deadline.left() + SETTLE_S):
            return await (resume_run(submission) if submission.order.resume else submission.start())
    except TimeoutError:
        raise submission.deadline.exceeded("preparing; nothing was changed by it") from None


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
