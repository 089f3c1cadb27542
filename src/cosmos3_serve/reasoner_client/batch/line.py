"""One answer, or why there is none, as a line of `answers.jsonl`: the output format of OpenAI's batch API."""

from __future__ import annotations

from typing import Any

from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.reasoner_client.ask import Posted

Line = dict[str, Any]


def answered(custom_id: str, posted: Posted) -> Line:
    response = {"status_code": 200, "request_id": posted.request_id, "body": posted.body}
    return {"custom_id": custom_id, "response": response, "error": None}


def failed(custom_id: str, error: Cosmos3Error) -> Line:
    return {"custom_id": custom_id, "response": None, "error": {"code": error.stable_code, "message": error.detail}}


def has_answer(line: Line) -> bool:
    return line.get("error") is None
