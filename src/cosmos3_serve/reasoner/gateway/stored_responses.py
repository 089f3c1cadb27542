"""/v1/responses/{id} and below: replicas share no state, so no answer is kept, and each path says so."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cosmos3_serve.errors import NotFound

_PATHS = {
    "/v1/responses/{id}": ["GET", "DELETE"],
    "/v1/responses/{id}/cancel": ["POST"],
    "/v1/responses/{id}/input_items": ["GET"],
}


def stored_response_routes() -> list[Route]:
    async def absent(_: Request) -> Response:
        raise NotFound(
            "answers of /v1/responses are not stored here",
            code="response_not_stored",
            remedy="keep the answer yourself, and send the earlier turns in input",
        )

    return [Route(path, absent, methods=methods) for path, methods in _PATHS.items()]
