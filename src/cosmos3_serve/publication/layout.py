"""Names in a publication, the same for the client that writes it and for everybody who reads it.

    request.json          the exact body of the POST
    response.json         the exact bytes received (a recovered publication may have none)
    artifacts/…           what the samples made
    native/…              in a recovered publication, the engine's own records that it was derived from
    provenance.json       last, created only if free: its presence means complete

Two folders hold what is no part of a publication: `.cosmos3-claims/` says who may publish here and is removed after
provenance.json is there, `.cosmos3-probes/` belongs to the storage room's proof.
"""

from __future__ import annotations

from typing import Final

from cosmos3_serve.storage.store import BOOKKEEPING, PROBES

REQUEST: Final = "request.json"
RESPONSE: Final = "response.json"
PROVENANCE: Final = "provenance.json"
ARTIFACTS: Final = "artifacts"
NATIVE: Final = "native"
# A queue: a publication for each part, and an object that names them all.
PARTS: Final = "parts"
INDEX: Final = "index.json"
INDEX_SCHEMA: Final = "cosmos3.queue.index.v1"
CLAIMS: Final = f"{BOOKKEEPING}claims"
MAX_RECORD_BYTES: Final = 512 * 1024 * 1024


def published_uri(output_path: str) -> str:
    """S3: the given text with exactly one trailing slash; a directory: as given, as the baseline's client wrote it."""
    return output_path.rstrip("/") + "/" if output_path.startswith("s3://") else output_path


def is_bookkeeping(name: str) -> bool:
    """Whether an object below the place belongs to claims or proofs, and so to no publication."""
    return name.startswith((f"{CLAIMS}/", f"{PROBES}/"))
