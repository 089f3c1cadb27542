"""The gateway's ASGI application: from the outside in, a log line, the token, failures, then the path decides.

What asks for words is found by its path alone; only what is asked rarely goes through a router with patterns.
"""

from __future__ import annotations

import re

from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from cosmos3_serve.errors import MethodNotAllowed
from cosmos3_serve.reasoner.gateway.chat import Chat
from cosmos3_serve.reasoner.gateway.endpoint import ENDPOINTS
from cosmos3_serve.reasoner.gateway.files import file_routes
from cosmos3_serve.reasoner.gateway.front import Front
from cosmos3_serve.reasoner.gateway.info import info_routes
from cosmos3_serve.reasoner.gateway.models import model_routes
from cosmos3_serve.reasoner.gateway.sessions import session_routes
from cosmos3_serve.reasoner.gateway.stored_responses import stored_response_routes
from cosmos3_serve.service.auth import BearerAuth
from cosmos3_serve.service.logs import RequestLog
from cosmos3_serve.service.openai_errors import error_message
from cosmos3_serve.service.problems import Problems

DRAIN_BYTES = 256 * 1024 * 1024  # of a body that is too large, so that a client that sends it all still reads why
_ID = re.compile(r"(/v1/(?:files|responses)/)[^/]+")


def build_app(front: Front) -> ASGIApp:
    """The application over `front`. Nothing answers before the token was checked, whatever the path."""
    asked = {endpoint.path: Chat(front, endpoint) for endpoint in ENDPOINTS}
    router = Router(
        [
            *info_routes(front),
            *model_routes(front),
            *session_routes(front),
            *file_routes(front),
            *stored_response_routes(),
        ],
        redirect_slashes=False,  # a redirect would repeat the request to a place that nobody asked for
    )

    async def by_path(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (chat := asked.get(scope["path"])) is not None:
            if scope["method"] != "POST":
                raise MethodNotAllowed(f"{scope['method']} is not allowed on this path", remedy="use POST")
            await chat(scope, receive, send)
            return
        await router(scope, receive, send)

    app: ASGIApp = Problems(by_path, error_message, DRAIN_BYTES)
    app = BearerAuth(app, front.book, front.metrics.unauthorized, error_message)
    return RequestLog(app, front.metrics.http_response, shown=loggable)


def loggable(path: str) -> str:
    """A path without the ids of clients' files and answers."""
    return _ID.sub(r"\1[id]", path)
