"""Parts that are batches of a generator: how samples become the body of a POST."""

from __future__ import annotations

import json
from typing import Any

from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.contract.prepare import prepare_request
from cosmos3_serve.errors import FieldError, InputError, ValidationFailed
from cosmos3_serve.queue.records import Kind
from cosmos3_serve.queue.sources import Start
from cosmos3_serve.queue.split import Group
from cosmos3_serve.storage.uri import require_object


class Batches:
    """See `work.PartFormat`."""

    kind = Kind.GENERATOR
    key = "name"

    def item_bytes(self, item: dict[str, Any]) -> int:
        """What a sample adds to the body as the client sends it (two spaces for each level, ASCII)."""
        text = json.dumps(item, indent=2)
        return len(text) + 4 * (text.count("\n") + 1) + 2

    def body(self, group: Group, start: Start, request_id: str) -> bytes:
        """The checked request of one part; findings name file and line instead of the part's own numbers."""
        try:
            request = prepare_request(
                {"samples": [item.sample for item in group.samples], "model": start.model}, check_uri=require_object
            )
        except InputError as error:
            found = [FieldError(_where(group, e.field), e.message, e.remedy) for e in error.errors]
            first = f"{found[0].field}: {found[0].message}" if found else error.detail
            raise ValidationFailed(
                f"invalid Cosmos3 Ray batch: {first}", remedy=error.remedy, errors=found, code=error.stable_code
            ) from None
        return _encoded(request.model_copy(update={"request_id": request_id}))


BATCHES = Batches()


def _encoded(request: BatchRequest) -> bytes:
    return json.dumps(request.body(), indent=2, allow_nan=False).encode()


def _where(group: Group, path: str) -> str:
    """`samples[3].num_frames` as `input.jsonl:1004: num_frames`."""
    head, _, rest = path.partition("]")
    number = head.removeprefix("samples[")
    if not (path.startswith("samples[") and number.isdigit() and int(number) < len(group.samples)):
        return path
    return ": ".join(filter(None, [group.samples[int(number)].where, rest.removeprefix(".")]))
