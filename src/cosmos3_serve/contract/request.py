"""`BatchRequest`: what a client asks (source: wire baseline 1.1)."""

from __future__ import annotations

import hashlib
from typing import Any

from pydantic import BaseModel, ConfigDict

from cosmos3_serve.contract.jsontext import canonical_json
from cosmos3_serve.contract.wire import MODEL_NAME


class BatchRequest(BaseModel):
    """A batch as validated by `parse_batch` or `prepare_request`; construct it through them.

    Samples stay the client's own objects (names stripped), so that what was asked is what is recorded. An empty
    `request_id` means that the server draws one.
    """

    model_config = ConfigDict(extra="ignore")

    samples: list[dict[str, Any]]
    model: str = MODEL_NAME
    request_id: str = ""

    @property
    def names(self) -> list[str]:
        return [sample["name"] for sample in self.samples]

    def body(self) -> dict[str, Any]:
        """The POST body, exactly the baseline's three keys."""
        return {"samples": self.samples, "model": self.model, "request_id": self.request_id}


def body_sha256(request: BatchRequest) -> str:
    """What makes two submissions the same batch: the hash of the canonical JSON of model and samples.

    The request id is left out; it is the key under which this hash is compared.
    """
    content = {"model": request.model, "samples": request.samples}
    return hashlib.sha256(canonical_json(content)).hexdigest()
