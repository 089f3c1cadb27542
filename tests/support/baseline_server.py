"""A generator service that speaks the public baseline contract and nothing more (docs/contract.md 2).

It imports nothing of the package under test. Media are real, weights there are none. `Faults` makes it misbehave on
purpose; every request is logged so that a test can count what a client asked for.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from support.baseline_artifacts import ArtifactSender
from support.baseline_media import FIELDS, resolve, write_outputs
from support.baseline_staging import StorageRefused, check_inputs

PIN = "5e67049cd94acb667786f1e6dd0dab821cb90c97"
BACKEND = "cosmos-framework-native-ray-serve"
SOURCE_REVISION = "0123456789abcdef0123456789abcdef01234567"
SCHEMA = "npa.cosmos3.ray-serve.batch.v1"
# What FastAPI and Ray's proxy answer to anyone; the texts of the first three are stand-ins.
UNPROTECTED = {"/docs": "docs", "/redoc": "redoc", "/openapi.json": "{}", "/-/healthz": "success", "/-/routes": "{}"}
SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


@dataclass
class Faults:
    """What goes wrong. Counters count down; 0 means never (any more)."""

    ready: bool = True
    announced: dict[str, Any] = field(default_factory=dict)  # more fields of /ready, over the contract's own
    edit_response: Callable[[dict[str, Any]], None] | None = None
    raw_response: bytes | None = None
    post_statuses: list[int] = field(default_factory=list)  # answered first, one a POST, before anything is accepted
    post_delay_s: float = 0.0
    drop_posts: int = 0  # accept the batch, then close the connection without an answer
    artifact_statuses: list[int] = field(default_factory=list)
    cut_downloads: int = 0  # close the connection after `cut_after` bytes of the body
    cut_after: int = 4096
    chunk_delay_s: float = 0.0
    flip_bytes: dict[str, int] = field(default_factory=dict)  # path suffix -> how many times its last byte is wrong
    no_range: bool = False
    redirect_to: str = ""
    failing: dict[str, str] = field(default_factory=dict)  # sample name -> status "error" or "skip"


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news; what else goes wrong is shown as ever."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class BaselineServer:
    """Context manager; serves on a free loopback port until it is left.

    `roots` are the S3 roots that inputs may come from; without any, every media input is refused.

    Attributes: `endpoint`, `token`, `log` (method, path, Range header or ""), `batches` (accepted request ids in
    order), `generated` (request_id/sample -> how often it was generated).
    """

    def __init__(
        self,
        root: Path,
        *,
        token: str = "support-token",
        revision: str = PIN,
        backend: str = BACKEND,
        guardrails: bool = True,
        max_batch_size: int = 4,
        faults: Faults | None = None,
        padding: dict[str, int] | None = None,
        roots: tuple[str, ...] = (),
    ) -> None:
        self.root, self.token, self.revision, self.backend = root.resolve(), token, revision, backend
        self.guardrails, self.max_batch_size = guardrails, max_batch_size
        self.faults, self.padding, self.roots = faults or Faults(), padding or {}, roots
        self.log: list[tuple[str, str, str]] = []
        self.batches: list[str] = []
        self.generated: dict[str, int] = {}
        self.lock = threading.Lock()
        server = self

        class Bound(self.handler_class()):  # type: ignore[misc]
            app = server

        self._http = _Http(("127.0.0.1", 0), Bound)
        self.endpoint = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @staticmethod
    def handler_class() -> type[BaselineHandler]:
        return BaselineHandler

    def __enter__(self) -> BaselineServer:
        self.root.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    # ---- the batch -------------------------------------------------------------------------------------------------

    def generate(self, request_id: str, sample: dict[str, Any]) -> dict[str, Any]:
        """One SampleOutputs with files relative to the output root."""
        name = str(sample["name"]).strip()
        directory = self.root / request_id / name
        args = resolve(sample, str(directory))
        with self.lock:
            self.generated[f"{request_id}/{name}"] = self.generated.get(f"{request_id}/{name}", 0) + 1
        result: dict[str, Any] = {
            "args": args,
            "status": self.faults.failing.get(name, "success"),
            "message": None,
            "stack_trace": None,
            "outputs": [],
        }
        if result["status"] != "success":
            result["message"] = f"sample {name!r} did not finish"
            return result
        result["outputs"] = write_outputs(args, directory, self.padding)
        for output in result["outputs"]:
            output["files"] = [str(Path(f).relative_to(self.root)) for f in output["files"]]
        return result

    def response(self, request_id: str, model: str, outputs: list[dict[str, Any]]) -> dict[str, Any]:
        artifacts = []
        for result in outputs:
            for output in result["outputs"]:
                for path in output["files"]:
                    size, digest = _hash(self.root / path)
                    artifacts.append({"sample": result["args"]["name"], "path": path, "bytes": size, "sha256": digest})
        body = {
            "schema_version": SCHEMA,
            "request_id": request_id,
            "model": model,
            "batch_size": len(outputs),
            "outputs": outputs,
            "artifacts": artifacts,
            "guardrails": self.guardrails,
            "max_batch_size": self.max_batch_size,
            "framework_revision": self.revision,
            "server_source_revision": SOURCE_REVISION,
        }
        if self.faults.edit_response:
            self.faults.edit_response(body)
        return body

    def ready(self) -> dict[str, Any]:
        return {
            "status": "ready",
            "backend": self.backend,
            "model": "Cosmos3-Nano",
            "guardrails": self.guardrails,
            "world_size": 1,
            "max_batch_size": self.max_batch_size,
            "model_max_ongoing_requests": self.max_batch_size,
            "batch_wait_timeout_s": 0.05,
            "framework_revision": self.revision,
            "server_source_revision": SOURCE_REVISION,
            "weights_baked": False,
            **self.faults.announced,
        }


class BaselineHandler(ArtifactSender):
    app: BaselineServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.body = b""
        self._route()

    def do_POST(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._route()

    def do_HEAD(self) -> None:
        self.send(405, {"detail": "Method Not Allowed"})

    do_DELETE = do_GET

    def _route(self) -> None:
        url = urlsplit(self.path)
        self.app.log.append((self.command, url.path, self.headers.get("Range", "")))
        if self.app.faults.redirect_to:
            self.send(307, {}, Location=self.app.faults.redirect_to + self.path)
            return
        self.route(unquote(url.path))

    def route(self, path: str) -> None:
        """Answer one request; the ledger test server extends this."""
        if self.command == "GET" and path in UNPROTECTED:
            self.plain(200, UNPROTECTED[path])
            return
        known = {"/health": "GET", "/ready": "GET", "/models": "GET", "/system-info": "GET", "/v1/batches": "POST"}
        artifact = path.startswith("/v1/artifacts/")
        if not artifact and path not in known:
            self.send(404, {"detail": "Not Found"})
        elif self.command != known.get(path, "GET"):
            self.send(405, {"detail": "Method Not Allowed"})
        elif artifact:
            if self.authorized():
                self.send_artifact(path.removeprefix("/v1/artifacts/"))
        elif path == "/v1/batches":
            self._batch()
        elif self.authorized():
            self._simple(path)

    def authorized(self) -> bool:
        given = self.headers.get("Authorization") or ""
        if not given.isascii():  # its comparison of texts raises
            self.plain(500, "Internal Server Error")
            return False
        if hmac.compare_digest(given, f"Bearer {self.app.token}"):
            return True
        self.send(401, {"detail": "invalid bearer token"})
        return False

    def _simple(self, path: str) -> None:
        app = self.app
        if path == "/health":
            self.send(200, {"status": "ok", "backend": app.backend})
        elif path == "/models":
            self.send(200, ["Cosmos3-Nano"])
        elif path == "/system-info":
            extra = {"framework_revision": app.revision, "server_source_revision": SOURCE_REVISION}
            self.send(200, {"accelerators": [], "ray_cluster_resources": {"CPU": 2.0}, **extra})
        elif app.faults.ready:
            self.send(200, app.ready())
        else:
            self.send(503, {"detail": "model deployment is not ready"})

    def _batch(self) -> None:
        faults = self.app.faults
        try:
            body = json.loads(self.body)
            if not isinstance(body, dict):
                raise ValueError
        except ValueError:
            self.send(422, {"detail": [{"type": "json_invalid", "loc": ["body"], "msg": "JSON decode error"}]})
            return
        if not self.authorized():
            return
        if faults.post_statuses:
            status = faults.post_statuses.pop(0)
            self.send(status, {"detail": f"planned {status}"}, **({"Retry-After": "0"} if status == 429 else {}))
            return
        time.sleep(faults.post_delay_s)
        try:
            request_id, model, samples = self.checked(body)
            if model != "Cosmos3-Nano":
                self.send(404, {"detail": f"model {model!r} is not loaded"})
                return
            self.accept(request_id, samples)
            outputs = [self.app.generate(request_id, sample) for sample in samples]
            answer = self.app.response(request_id, model, outputs)
        except StorageRefused as refused:
            self.send(400, {"detail": str(refused)})
            return
        except Exception:
            self.plain(500, "Internal Server Error")
            return
        if faults.drop_posts:
            faults.drop_posts -= 1
            self.hang_up()
        elif faults.raw_response is not None:
            self.reply(200, faults.raw_response, "application/json")
        else:
            self.send(200, answer)

    def checked(self, body: dict[str, Any]) -> tuple[str, str, list[dict[str, Any]]]:
        """Request id, model and samples. Every failure is an exception, which the baseline answers with an opaque
        500."""
        samples, model = body["samples"], body.get("model", "Cosmos3-Nano")
        names = [str(sample["name"]).strip() for sample in samples]
        request_id = body.get("request_id") or uuid.uuid4().hex
        safe = all(SAFE.fullmatch(n) for n in [request_id, *names])
        if not names or len(set(names)) != len(names) or not safe or not isinstance(model, str):
            raise ValueError("bad batch")
        return request_id, model, samples

    def accept(self, request_id: str, samples: list[dict[str, Any]]) -> None:
        """Takes the id, for good, then looks at the samples one by one.

        Raises:
            StorageRefused: the id leads out of the output root, or an input is not allowed.
        """
        if (self.app.root / request_id).resolve().parent != self.app.root:
            raise StorageRefused("invalid request id")
        (self.app.root / request_id).mkdir()
        for sample in samples:
            check_inputs(sample, self.app.roots)
            if sample.keys() - FIELDS:
                raise ValueError("a key that upstream does not know")
        with self.app.lock:
            self.app.batches.append(request_id)


def _hash(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if path.stat().st_size < 1:
        raise ValueError("empty output")
    return path.stat().st_size, digest
