"""What a failed attempt at a part means: try again, elsewhere, publish what there is, give the part up, or stop."""

from __future__ import annotations

from enum import Enum

from cosmos3_serve.errors import (
    Cosmos3Error,
    Draining,
    Incomplete,
    InputError,
    NotReady,
    QueueFull,
    Refusal,
    StorageFailure,
    Unreachable,
    UsageError,
)

SAMPLES_FAILED = "samples_failed"
PATIENCE_S = 1800.0  # in which no part can be worked on, before a worker ends
# Another worker, another process of this machine or a service that is away has to do something first.
BUSY = frozenset({"run_in_progress", "publication_in_progress", "part_bound"})
# The service is away or full; nothing is wrong with the part.
AWAY = frozenset({"unreachable", "outcome_unknown", "batch_unknown", "not_ready", "draining", "queue_full"})
# The service takes smaller parts than those that were planned.
TOO_SMALL = frozenset({"batch_too_large"})
# This machine, or the way to its storage, cannot go on with any part.
OURS = frozenset({"storage_denied", "journal_unusable", "journal_damaged", "spool_too_small",
                  "conditional_put_unsupported"})  # fmt: skip


class Meaning(Enum):
    LATER = "later"  # not counted
    ELSEWHERE = "elsewhere"  # the service failed, not the part: not counted
    AGAIN = "again"  # counted: failed samples run again
    PARTIAL = "partial"  # publish what succeeded
    GIVE_UP = "give up"  # the part ends without a publication
    REFUSED = "refused"  # the service will take none of our parts
    STOP = "stop"  # no part can succeed from here


def meaning_of(error: Cosmos3Error, *, attempts: int, most: int, partial: bool) -> Meaning:
    """
    Args:
        attempts: counted ones, this one included.
        most: how many there may be.
        partial: whether this attempt was to publish what succeeded.
    """
    code, last = error.stable_code, attempts >= most
    if code in BUSY or code in StorageFailure.passing:
        return Meaning.LATER
    if code in OURS:
        return Meaning.STOP
    if code == SAMPLES_FAILED:
        if partial:
            return Meaning.GIVE_UP
        again = isinstance(error, Incomplete) and not last
        return Meaning.AGAIN if again else Meaning.PARTIAL
    if code in AWAY or isinstance(error, Unreachable | NotReady | QueueFull | Draining):
        return Meaning.ELSEWHERE
    if isinstance(error, Refusal) or code in TOO_SMALL:
        return Meaning.REFUSED
    if isinstance(error, UsageError):
        return Meaning.STOP
    if isinstance(error, InputError):
        return Meaning.GIVE_UP
    if not last:
        return Meaning.AGAIN
    # What can be resumed is never given up, and a fault of the storage is none of the part.
    return Meaning.STOP if isinstance(error, Incomplete | StorageFailure) else Meaning.GIVE_UP
