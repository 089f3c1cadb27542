"""/v1/models: what the replicas say of the model, without the places of its files, and what its weights are."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cosmos3_serve.errors import FieldError, ModelNotLoaded
from cosmos3_serve.reasoner.gateway.front import Front
from cosmos3_serve.reasoner.gateway.upstream import Lost, Silent, Unreachable

ASK_S = 5.0
KEPT_S = 30.0


class Models:
    """The list, asked of any replica that serves; what was heard last stands while none does."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._lock = asyncio.Lock()
        self._known: list[dict[str, Any]] = []
        self._heard_at = float("-inf")

    async def rows(self) -> list[dict[str, Any]]:
        async with self._lock:
            if self._front.clock() - self._heard_at >= KEPT_S:
                for member in self._front.ready_members():
                    try:
                        status, body = await self._front.upstream.get(member.url, "/v1/models", ASK_S)
                        found = json.loads(body)["data"] if status == 200 else []
                    except (Unreachable, Lost, Silent, ValueError, KeyError, TypeError):
                        continue
                    if found:
                        self._known, self._heard_at = [self._row(row) for row in found], self._front.clock()
                        break
        return self._known or [self._row({})]

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        model = self._front.setup.model
        own = {"id": model.name, "object": "model", "owned_by": "cosmos3-serve", "created": 0}
        known = {**own, "max_model_len": model.max_model_len, **row}
        return {**known, "root": model.checkpoint, "weights": model.weights}


def model_routes(front: Front) -> list[Route]:
    models = Models(front)

    async def listing(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": await models.rows()})

    async def one(request: Request) -> Response:
        name = request.path_params["name"]
        for row in await models.rows():
            if row["id"] == name:
                return JSONResponse(row)
        detail = f"the model {name[:100]!a} does not exist here"
        served = front.setup.model.name
        raise ModelNotLoaded(detail, code="model_not_found", errors=(FieldError("model", detail, f"use {served}"),))

    return [Route("/v1/models", listing), Route("/v1/models/{name:path}", one)]
