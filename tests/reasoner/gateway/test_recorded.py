"""Requests as popular clients send them, replayed: each is answered, and nothing of it is lost on the way.

`recorded/` holds them, with the client's version and how they were had.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.gateway import TOKEN, world

from cosmos3_serve.reasoner.gateway.endpoint import ENDPOINTS
from cosmos3_serve.reasoner.gateway.fields import Role

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))
FIELDS = {endpoint.path: endpoint.fields for endpoint in ENDPOINTS}
READ_HERE = {"best_of"}


def requests_of(path: Path) -> list[dict[str, Any]]:
    held = json.loads(path.read_text(encoding="utf-8"))
    assert held["client"] and held["version"] and held["how"]
    return list(held["requests"])


def without_media(value: Any) -> Any:
    """Media travel under names of the gateway's, and a demanded function is strict."""
    if isinstance(value, dict):
        dropped = ("image_url", "uuid") if "image_url" in value else ("strict",) if "parameters" in value else ()
        return {k: without_media(v) for k, v in value.items() if k not in dropped}
    return [without_media(v) for v in value] if isinstance(value, list) else value


def test_every_client_is_here_and_no_token_is() -> None:
    assert [path.stem for path in RECORDED] == ["langchain", "litellm", "open_webui"]
    for path in RECORDED:
        assert "authorization" not in path.read_text(encoding="utf-8").lower()
    paths = {request["path"] for path in RECORDED for request in requests_of(path)}
    assert paths >= FIELDS.keys()


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
async def test_what_a_client_sends_is_answered_and_arrives(tmp_path: Path, path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        stub = here.replicas[0]
        for request in requests_of(path):
            body, where = request["body"], request["path"]
            headers = {**request["headers"], "authorization": f"Bearer {TOKEN}"}
            content = json.dumps(body).encode() if body is not None else None
            stub.asked.clear()
            told = await http.request(request["method"], where, content=content, headers=headers)
            assert told.status_code == 200, (request["call"], told.text)
            if body is None:
                continue
            assert '"error"' not in told.text, request["call"]
            (arrived,) = stub.asked
            for name, value in body.items():
                if FIELDS[where][name].role is not Role.NO_EFFECT and name not in READ_HERE:
                    assert without_media(arrived[name]) == without_media(value), (request["call"], name)
