"""Run again, in the same run, samples that failed and may be retried: a restart of the service interrupts samples."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cosmos3_serve.client.acceptance import retryable
from cosmos3_serve.client.deadline import Deadline
from cosmos3_serve.client.journal import Journal
from cosmos3_serve.client.progress import Progress
from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.storage.files import in_thread

# A sample that fails each time is reported, not repeated until the deadline.
RERUNS, RERUN_WAIT_S = 3, 2.0


async def rerun(
    response: bytes,
    request: BatchRequest,
    journal: Journal,
    obtain: Callable[[], Awaitable[bytes]],
    deadline: Deadline,
    progress: Progress,
) -> bytes:
    """Post the same body under the same id while samples may run again: the service runs only those.

    Args:
        obtain: posts the batch and waits for its response.

    Returns:
        The last response. It may still lack samples: after `RERUNS` times, or near the deadline.
    """
    for attempt in range(RERUNS if journal.run.ledger else 0):
        again = await in_thread(retryable, request, response, expected_revision=journal.run.expected_revision)
        wait_s = RERUN_WAIT_S * 2**attempt
        if not again or wait_s >= deadline.left():
            break
        shown = ", ".join(again[:3]) + (f" and {len(again) - 3} more" if len(again) > 3 else "")
        progress.notice(f"running again what the service interrupted or could not finish: {shown}")
        await asyncio.sleep(wait_s)
        await in_thread(journal.drop_response)
        response = await obtain()
    return response
