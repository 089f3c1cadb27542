"""What a failure means for the run on disk, and what the user can do next.

Nothing was accepted: the run is forgotten. The far side or the way there broke: Incomplete, `--resume` continues it.
The outcome itself is wrong: it failed, and request, response and reason stay in the journal.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from cosmos3_serve.client.journal import Journal
from cosmos3_serve.errors import (
    ContractViolation,
    Cosmos3Error,
    Cosmos3RayServeError,
    Incomplete,
    InputError,
    IntegrityError,
    Interrupted,
    Refusal,
    ServiceFailure,
    Unreachable,
)
from cosmos3_serve.settings import TOKEN_ENV

PLACE_CODES = frozenset({"publication_exists", "publication_in_progress", "output_occupied"})
FLAG_CODES = PLACE_CODES | {"spool_too_small"}
FINAL_CODES = frozenset({"samples_failed", "artifact_missing", "batch_expired", "redirect_refused"})


ELSEWHERE = "ANOTHER_PLACE"  # for a person to replace


def resume_command(output_path: str, *, journal_dir: Path | None, token_env: str, run_id: str = "") -> str:
    """The command line that continues a run; with `run_id` one that was submitted to another output path."""
    words = [
        "cosmos3",
        "ray-batch",
        "--resume",
        *(["--run-id", run_id] if run_id else []),
        "--output-path",
        output_path,
    ]
    if token_env != TOKEN_ENV:
        words += ["--token-env", token_env]
    if journal_dir is not None:
        words += ["--journal-dir", str(journal_dir)]
    return shlex.join(words)


def settle(error: Cosmos3Error, journal: Journal, resume: str, *, first: bool, elsewhere: str = "") -> Cosmos3Error:
    """Bring the journal in line with the failure and return what to raise. Blocking.

    Args:
        resume: the command that continues the run.
        first: whether this process was the first to post the batch; only then can "not accepted" be concluded.
        elsewhere: the command that publishes it at another place.
    """
    if first and journal.run.state == "prepared" and _not_accepted(error):
        journal.remove()
        return error
    if error.stable_code in PLACE_CODES and journal.resumable:
        journal.save()
        waits = f"wait for it, then continue with: {resume}" if isinstance(error, Incomplete) else ""
        return _as(type(error), error, _join(waits, f"publish it at another place with: {elsewhere}"))
    if isinstance(error, InputError) and journal.run.state != "prepared" and error.stable_code not in FLAG_CODES:
        # The service took the batch, so the input was right; a 404 or 409 since then is no fault of it.
        error = _as(ServiceFailure, error, error.remedy)
    final = isinstance(error, ContractViolation | IntegrityError) or error.stable_code in FINAL_CODES
    if journal.resumable and not final:
        journal.save()  # touched: pruning counts from the last try
        if isinstance(error, ServiceFailure):
            return _as(Incomplete, error, f"continue with: {resume}")
        return _as(type(error), error, _join(error.remedy, f"then continue with: {resume}"))
    again = isinstance(error, Incomplete)
    journal.save(state="failed", failure=error.as_problem() | {"retryable": again})
    kept = f"request, response and reason are kept in {journal.directory}"
    if not journal.resumable:
        return _as(Cosmos3RayServeError, error, _join(_where(journal), kept))
    if again:
        return _as(Incomplete, error, _join(f"run again what may be: {resume}", error.remedy))
    return _as(type(error), error, _join(error.remedy, kept, f"to check them again: {resume}"))


def interrupted(journal: Journal | None, resume: str) -> Interrupted:
    """What Ctrl-C and SIGTERM become."""
    if journal is None or not journal.directory.exists():
        return Interrupted("stopped before anything was submitted", remedy="run the same command again")
    if journal.resumable:
        if journal.run.state != "submitted":
            return Interrupted("stopped; nothing is lost", remedy=f"continue with: {resume}")
        stop = shlex.join(["cosmos3", "batch", "cancel", journal.run.request_id, "--endpoint", journal.run.endpoint])
        return Interrupted(
            "stopped; nothing is lost, and the service works on",
            remedy=f"continue with: {resume}; or stop the service's work with: {stop}",
        )
    journal.save(state="failed", failure={"code": "interrupted", "detail": "stopped while the service worked"})
    return Interrupted(
        "stopped while the service worked; it keeps no batches, so its result cannot be asked for",
        remedy=_where(journal),
    )


def _where(journal: Journal) -> str:
    request = journal.run.request_id
    return f"the service keeps no batches; look for request {request} below its output root before a new run"


def _join(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _not_accepted(error: Cosmos3Error) -> bool:
    """An answer that said no, or a request that certainly was not received."""
    if isinstance(error, Unreachable):
        return not error.sent
    return isinstance(error, InputError | Refusal)


def _as(kind: type[Cosmos3Error], error: Cosmos3Error, remedy: str) -> Cosmos3Error:
    if kind is Unreachable:
        kind = Cosmos3RayServeError
    return kind(
        error.detail, remedy=remedy, errors=error.errors, code=error.stable_code, retry_after_s=error.retry_after_s
    )
