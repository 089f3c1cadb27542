"""The generator's ASGI application: from the outside in, a log line, the token, failures, limits, then the routes."""

from __future__ import annotations

from starlette.routing import Router
from starlette.types import ASGIApp

from cosmos3_serve.generator.http.artifacts import artifact_routes
from cosmos3_serve.generator.http.batches import batch_routes
from cosmos3_serve.generator.http.front import Front
from cosmos3_serve.generator.http.info import info_routes
from cosmos3_serve.service.auth import BearerAuth
from cosmos3_serve.service.limits import BodyLimit
from cosmos3_serve.service.logs import RequestLog
from cosmos3_serve.service.problems import Problems


def build_app(front: Front) -> ASGIApp:
    """The application over `front`. Nothing answers before the token was checked, whatever the path."""
    router = Router(
        [*info_routes(front), *batch_routes(front), *artifact_routes(front)],
        redirect_slashes=False,  # a redirect would repeat the request to a place that nobody asked for
    )
    app: ASGIApp = BodyLimit(router, front.settings.max_body_bytes)
    # A client that sends too much is heard out that far, so that it sees the 413 and not a broken connection.
    app = Problems(app, drain_bytes=2 * front.settings.max_body_bytes)
    app = BearerAuth(app, front.book, front.metrics.unauthorized)
    return RequestLog(app, front.metrics.http_response)
