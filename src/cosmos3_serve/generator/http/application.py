"""The generator's ASGI application: from the outside in, a log line, the token, failures, limits, then the routes."""

from __future__ import annotations

from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from cosmos3_serve.generator.http.artifacts import ArtifactSender, artifact_routes
from cosmos3_serve.generator.http.batches import batch_routes
from cosmos3_serve.generator.http.front import Front
from cosmos3_serve.generator.http.info import info_routes
from cosmos3_serve.generator.http.openai_errors import openai_message, speaks_openai
from cosmos3_serve.generator.http.openai_routes import openai_routes
from cosmos3_serve.service.auth import BearerAuth
from cosmos3_serve.service.limits import BodyLimit
from cosmos3_serve.service.logs import RequestLog
from cosmos3_serve.service.problems import Problems, Render, problem_message


def build_app(front: Front) -> ASGIApp:
    """The application over `front`. Nothing answers before the token was checked, whatever the path."""
    files = ArtifactSender(front)
    router = Router(
        [*info_routes(front), *batch_routes(front), *artifact_routes(files), *openai_routes(front, files)],
        redirect_slashes=False,  # a redirect would repeat the request to a place that nobody asked for
    )
    app: ASGIApp = BodyLimit(router, front.settings.max_body_bytes)
    ours, openai = (_guarded(app, front, render) for render in (problem_message, openai_message))

    async def by_path(scope: Scope, receive: Receive, send: Send) -> None:
        dialect = openai if speaks_openai(scope.get("path", "")) else ours
        await dialect(scope, receive, send)

    return RequestLog(by_path, front.metrics.http_response)


def _guarded(app: ASGIApp, front: Front, render: Render) -> ASGIApp:
    """The application behind the token, with failures in one shape."""
    # A client that sends too much is heard out that far, so that it sees the 413 and not a broken connection.
    app = Problems(app, render, drain_bytes=2 * front.settings.max_body_bytes)
    return BearerAuth(app, front.book, front.metrics.unauthorized, render)
