"""ReplicaSecret: the middleware that vLLM's server runs, which demands the cluster secret on every path.

vLLM's own key guards /v1 only; /health, /metrics and the rest would answer anybody. This file is copied beside the
engine and imported by vLLM's interpreter, where our package is not installed: standard library only.
"""

import hashlib
import hmac
import os
from typing import Any

HEADER = b"x-cosmos3-cluster-secret"
SECRET_ENV = "COSMOS3_REPLICA_SECRET"


class ReplicaSecret:
    """Pure ASGI. Answers 401 before any body is read; a server without a secret answers nobody."""

    def __init__(self, app):  # type: ignore[no-untyped-def]
        self.app = app
        secret = os.environ.get(SECRET_ENV, "")
        if not secret:
            raise RuntimeError(f"{SECRET_ENV} is not set")
        self.digest = hashlib.sha256(secret.encode()).digest()

    async def __call__(self, scope, receive, send):  # type: ignore[no-untyped-def]
        if scope["type"] == "lifespan" or self._knows(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "no secret"})
        else:
            headers = [(b"content-type", b"text/plain"), (b"content-length", b"13"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b"unauthorized\n"})

    def _knows(self, scope: Any) -> bool:
        given = [value for name, value in scope["headers"] if name == HEADER]
        # Digests: comparing takes as long whatever was sent.
        return len(given) == 1 and hmac.compare_digest(hashlib.sha256(given[0]).digest(), self.digest)
