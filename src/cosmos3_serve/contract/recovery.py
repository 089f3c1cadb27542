"""What the provenance of a recovered publication says: which files it was derived from, how the first attempt ended.

A recovery is never an answer of the service: where the service's ledger gave the exact response, `response` says so,
and where it did not there is none. What the first attempt's client recorded is copied, never changed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from cosmos3_serve.contract.records import Sha256

NOTE = (
    "Derived from retained native outputs after the first client attempt did not end in a publication. It is not what"
    " the service answered to that client, and that attempt's recorded outcome is unchanged."
)


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class NativeFile(Record):
    """One retained file, as it was found. `path` is relative to the output root.

    Attributes:
        checked_against: what its hash was compared with: the `ledger`, a `hashes` file made where the outputs lay, or
            `nothing` but its own second reading.
    """

    sample: str
    path: str
    role: Literal["args", "outputs", "artifact"]
    bytes: Annotated[int, Field(ge=1)]
    sha256: Sha256
    checked_against: Literal["ledger", "hashes", "nothing"] = "nothing"


class FirstAttempt(Record):
    """The client's own record of the attempt that did not publish, as its journal holds it.

    Attributes:
        state: the journal's state; `submitted` without a failure means that the client stopped without an outcome.
        failure_code, failure_detail: the recorded outcome.
        response_bytes, response_sha256: of the response that it received, None where it received none.
        record_sha256: of the journal's run.json, so that a later change of the record shows.
    """

    state: str
    run_id: str
    request_id: str
    endpoint: str
    expected_revision: str
    created_at: float
    submitted_at: float | None = None
    ended_at: float | None = None
    failure_code: str | None = None
    failure_detail: str | None = None
    response_bytes: int | None = None
    response_sha256: Sha256 | None = None
    record_sha256: Sha256


class Recovery(Record):
    """Where everything came from.

    Attributes:
        source: the service's ledger over HTTP, or a copy of its output directory (local, or below an S3 prefix).
        location: as it was named.
        request_from: whether request.json holds the journal's exact POST body, or was made from the batch file.
        response: `ledger`: the exact bytes kept by the service; `none`: there is no response.json.
        native_records: whether sample_args.json and sample_outputs.json were read and bound.
        ignored: files of the source that are no results and were not read.
        first_attempt: None where no journal of it was found.
    """

    source: Literal["service_ledger", "output_directory", "output_prefix"]
    location: str
    request_from: Literal["journal", "batch_file"]
    response: Literal["ledger", "none"]
    native_records: bool
    natives: list[NativeFile]
    ignored: list[str] = Field(default_factory=list)
    first_attempt: FirstAttempt | None = None
    note: str = NOTE
