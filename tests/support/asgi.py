"""Drive an ASGI application by hand: what was sent, what was asked for, and in which order."""

from collections.abc import Iterable
from typing import Any


class Exchange:
    """One request. `reads` counts how often the application asked for the body before it answered."""

    def __init__(
        self,
        method: str = "GET",
        path: str = "/",
        headers: Iterable[tuple[bytes, bytes]] = (),
        body: Iterable[bytes] = (),
        **scope: Any,
    ) -> None:
        self.scope: dict[str, Any] = {
            "type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
            "query_string": b"", "root_path": "", "scheme": "http", "headers": list(headers), "client": None,
            "server": ("test", 80), **scope,
        }  # fmt: skip
        self._body = list(body)
        self.reads = 0
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        if not self.sent:
            self.reads += 1
        if not self._body:
            return {"type": "http.disconnect"}
        part = self._body.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(self._body)}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    async def run(self, app: Any) -> "Exchange":
        await app(self.scope, self.receive, self.send)
        return self

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def content(self) -> bytes:
        return b"".join(m.get("body", b"") for m in self.sent[1:])
