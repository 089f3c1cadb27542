"""Artifacts: the ledger's files, streamed in bounded chunks away from the event loop."""

from __future__ import annotations

import asyncio
import mimetypes
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from cosmos3_serve.errors import IntegrityError, NotFound, NotReady, RangeNotSatisfiable, ServiceFailure
from cosmos3_serve.generator.http.front import Artifact, Front
from cosmos3_serve.generator.http.ranges import Validators, not_modified, wanted_range
from cosmos3_serve.service.auth import tenant_of
from cosmos3_serve.service.problems import problem_message

CHUNK_BYTES = 256 * 1024
NOT_FOUND = "artifact not found"  # the baseline's text
READERS = 4  # threads of their own: a slow disk must not starve what else runs in threads


class ArtifactSender:
    """Answers requests with files that the ledger declares."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="artifact")

    async def answer(self, request: Request, path: str) -> Response:
        """The file at `path` below the output root. Raises NotFound, NotReady, ServiceFailure, IntegrityError."""
        found = await self._find(path, tenant_of(request.scope))
        loop = asyncio.get_running_loop()
        descriptor, modified = await loop.run_in_executor(self._readers, _open, found)
        try:
            return _answer(request, self._front, found, descriptor, modified, self._readers)
        except BaseException:
            os.close(descriptor)
            raise

    async def content(self, path: str, tenant: str) -> bytes:
        """The whole file, for a small one. Raises as `answer`."""
        found = await self._find(path, tenant)
        content = await asyncio.get_running_loop().run_in_executor(self._readers, _whole, found)
        self._front.metrics.bytes("artifacts_out", len(content))
        return content

    async def _find(self, path: str, tenant: str) -> Artifact:
        if self._front.batches is None:
            raise NotReady("the service is starting", retry_after_s=5)
        try:
            return await self._front.batches.artifact(path, tenant=tenant)
        except NotFound as error:
            raise NotFound(NOT_FOUND, code=error.stable_code) from None


def artifact_routes(sender: ArtifactSender) -> list[Route]:
    async def artifact(request: Request) -> Response:
        return await sender.answer(request, request.path_params["path"])

    return [Route("/v1/artifacts/{path:path}", artifact, methods=["GET"])]


def _whole(found: Artifact) -> bytes:
    descriptor, _ = _open(found)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def _open(found: Artifact) -> tuple[int, float]:
    """Open once and never by name again: what retention removes meanwhile stays readable to its end."""
    try:
        descriptor = os.open(found.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(NOT_FOUND) from None
    except OSError as error:
        text = f"the artifact cannot be read now ({type(error).__name__})"
        raise ServiceFailure(text, code="artifact_unreadable", retry_after_s=5) from None
    status = os.fstat(descriptor)
    if status.st_size != found.bytes:
        os.close(descriptor)
        raise IntegrityError("the stored file no longer has the size that the ledger declares")
    return descriptor, status.st_mtime


def _answer(
    request: Request, front: Front, found: Artifact, descriptor: int, modified: float, readers: ThreadPoolExecutor
) -> Response:
    validators = Validators.of(found.sha256, modified)
    headers = {
        "accept-ranges": "bytes",
        "cache-control": "private, no-cache",
        "etag": validators.etag,
        "last-modified": validators.last_modified,
        "x-content-type-options": "nosniff",
    }
    asked = request.headers
    if not_modified(validators, asked.get("if-none-match"), asked.get("if-modified-since")):
        os.close(descriptor)
        return Response(status_code=304, headers=headers)
    first, end, status = 0, found.bytes, 200
    if request.method == "GET":  # a range means nothing to HEAD (RFC 9110, 14.2)
        try:
            wanted = wanted_range(asked.get("range"), asked.get("if-range"), found.bytes, validators)
        except RangeNotSatisfiable as error:
            os.close(descriptor)
            code, problem_headers, body = problem_message(error)
            given = {k.decode(): v.decode() for k, v in problem_headers}
            return Response(body, code, {**given, "content-range": f"bytes */{found.bytes}"})
        if wanted is not None:
            first, end = wanted
            status = 206
            headers["content-range"] = f"bytes {first}-{end - 1}/{found.bytes}"
    headers["content-length"] = str(end - first)
    headers["content-type"] = _type_of(found.path)
    return _FileStream(descriptor, first, end, status, headers, front, readers)


class _FileStream(Response):
    def __init__(
        self,
        descriptor: int,
        first: int,
        end: int,
        status: int,
        headers: dict[str, str],
        front: Front,
        readers: ThreadPoolExecutor,
    ) -> None:
        super().__init__(None, status, headers)
        self._descriptor, self._first, self._end = descriptor, first, end
        self._front, self._readers = front, readers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
                return
            loop, offset = asyncio.get_running_loop(), self._first
            began = loop.time()
            while offset < self._end:
                size = min(CHUNK_BYTES, self._end - offset)
                chunk = await loop.run_in_executor(self._readers, os.pread, self._descriptor, size, offset)
                if not chunk:
                    # The promised length cannot be kept; the connection breaks, and the client resumes or complains.
                    raise IntegrityError("the stored file became shorter while it was read")
                offset += len(chunk)
                self._front.metrics.bytes("artifacts_out", len(chunk))
                await send({"type": "http.response.body", "body": chunk, "more_body": offset < self._end})
            if self._first == self._end:
                await send({"type": "http.response.body", "body": b""})
            self._front.metrics.phase("delivery", loop.time() - began)
        finally:
            os.close(self._descriptor)


def _type_of(path: Path) -> str:
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
