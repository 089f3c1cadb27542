"""Where retained outputs are fetched from: the service's ledger by request id, or a copied output directory."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from cosmos3_serve.client import follow, load
from cosmos3_serve.client.deadline import Deadline
from cosmos3_serve.client.delivery.transfer import Transfer
from cosmos3_serve.client.http import Service
from cosmos3_serve.client.limits import default_timeout_s
from cosmos3_serve.client.recovery.first_attempt import Origin
from cosmos3_serve.client.recovery.native_files import LocalTree, Natives, PrefixTree, Tree
from cosmos3_serve.client.recovery.native_hashes import MAX_BYTES, parse_hashes
from cosmos3_serve.client.recovery.qualify import MAX_JSON_BYTES, DirectoryQualifier, Qualified, qualify_ledger
from cosmos3_serve.client.recovery.record import Source
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.contract.recovery import NativeFile
from cosmos3_serve.contract.views import BatchState, BatchView
from cosmos3_serve.contract.wire import FRAMEWORK_REVISION
from cosmos3_serve.errors import IntegrityError, NotFound, Refusal, UsageError
from cosmos3_serve.settings import MIB, TOKEN_ENV
from cosmos3_serve.storage.files import in_thread
from cosmos3_serve.storage.location import open_object, open_store
from cosmos3_serve.storage.uri import SCHEME

SPOOL_BYTES = 16 * 1024 * MIB
CHANGED = "it changed while it was read"
Fetch = Callable[[Artifact], Awaitable[Path]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverOrder:
    """What the caller asked for.

    Attributes:
        source: a copied output directory, local or s3://; empty: ask the service's ledger at `endpoint`.
        request_id: the request (or run) id of the first attempt; may be empty where the batch file carries one.
        input_path: the original batch; not needed where the journal of the first attempt is here.
        hashes: file or s3:// object with SHA-256 sums made where the outputs lay.
        timeout: seconds for what is asked of the service; None: as for submitting the batch.
        dry_run: qualify and report; publish nothing.
    """

    output_path: str
    source: str = ""
    request_id: str = ""
    input_path: str = ""
    endpoint: str = ""
    token_env: str = TOKEN_ENV
    run_id: str = ""
    hashes: str = ""
    expected_revision: str = FRAMEWORK_REVISION
    allow_partial: bool = False
    dry_run: bool = False
    journal_dir: Path | None = None
    timeout: float | None = None
    spool_bytes: int = SPOOL_BYTES


@dataclass(frozen=True, slots=True)
class Retained:
    """What was found, and how one file of it is brought into the spool with exactly the declared bytes."""

    kind: Source
    location: str
    found: Qualified
    fetch: Fetch
    natives: Natives | None = None

    async def record(self, native: NativeFile) -> bytes:
        """One of the engine's own records, again with the bytes that were bound. Raises IntegrityError."""
        assert self.natives is not None
        data = await self.natives.read(native.path, MAX_JSON_BYTES)
        if hashlib.sha256(data).hexdigest() != native.sha256:
            raise IntegrityError(f"{native.path}: {CHANGED}")
        return data


async def gather(
    order: RecoverOrder,
    origin: Origin,
    spool: Path,
    stack: AsyncExitStack,
    environ: Mapping[str, str],
    notice: Callable[[str], None],
) -> Retained:
    """Read and bind everything but the media's content.

    Raises:
        Refusal: nothing of the request is there (`native_outputs_missing`), it still runs (`batch_not_ended`), it is
            gone (`batch_expired`), or the service keeps no batches (`recover_unsupported`).
        ContractViolation: the ledger's response is not one to this request.
        UsageError, StorageFailure, Unreachable, Incomplete.
    """
    if order.source.strip():
        return await _from_copy(order, origin, spool, environ)
    return await _from_service(order, origin, spool, stack, environ, notice)


async def _from_copy(order: RecoverOrder, origin: Origin, spool: Path, environ: Mapping[str, str]) -> Retained:
    request_id, source = origin.request.request_id, order.source.strip()
    natives = await Natives.open(await _tree(source, environ), request_id, origin.request.names)
    response = await natives.ledger_response(request_id, follow.MAX_RESPONSE_BYTES)
    qualifier = DirectoryQualifier(origin.request, natives, await _hashes(order, request_id, environ))
    found = await qualifier.run(response, _expected(order, origin))

    async def fetch(artifact: Artifact) -> Path:
        path = spool / artifact.path
        if await in_thread(path.exists):
            return path  # it was compared when it was put there
        if await natives.copy(artifact.path, path) != (artifact.bytes, artifact.sha256):
            await in_thread(path.unlink, missing_ok=True)
            raise IntegrityError(CHANGED)
        return path

    return Retained(natives.tree.kind, source, found, fetch, natives)


async def _tree(source: str, environ: Mapping[str, str]) -> Tree:
    if source.lower().startswith(SCHEME):
        return PrefixTree(open_store(source, environ))
    root = Path(source)
    if not await in_thread(root.is_dir):
        raise UsageError(f"the source is no directory: {source}", remedy="give --source a directory or an s3:// prefix")
    return LocalTree(await in_thread(root.resolve))


async def _hashes(order: RecoverOrder, request_id: str, environ: Mapping[str, str]) -> dict[str, str] | None:
    named = order.hashes.strip()
    if not named:
        return None
    location = named if named.lower().startswith(SCHEME) else str(Path(named).absolute())
    store, key = open_object(location, environ)
    chunks = [chunk async for chunk in store.get_stream(key, max_bytes=MAX_BYTES)]
    return await in_thread(parse_hashes, b"".join(chunks).decode("utf-8", "replace"), request_id)


async def _from_service(
    order: RecoverOrder,
    origin: Origin,
    spool: Path,
    stack: AsyncExitStack,
    environ: Mapping[str, str],
    notice: Callable[[str], None],
) -> Retained:
    request_id = origin.request.request_id
    given = order.endpoint.strip() or (origin.attempt.endpoint if origin.attempt else "")
    endpoint = load.endpoint_of(given, environ)
    token = load.token_of(order.token_env, environ)
    if warning := load.plain_http_warning(endpoint):
        notice(warning)
    service = await stack.enter_async_context(
        Service(endpoint, token, Deadline(order.timeout or default_timeout_s(origin.request)), on_retry=notice)
    )
    ledger, view = await follow.probe(service, request_id)
    _require_ended(request_id, ledger, view)
    response = await follow.fetch_response(service, request_id)
    found = await in_thread(qualify_ledger, origin.request, response, _expected(order, origin))
    return Retained("service_ledger", endpoint, found, Transfer(service, spool).fetch)


def _require_ended(request_id: str, ledger: bool, view: BatchView | None) -> None:
    if not ledger:
        raise Refusal(
            "the service keeps no batches (it has no GET /v1/batches/{id})",
            remedy=f"copy {request_id}/ from its output root and name the copy with --source",
            code="recover_unsupported",
        )
    if view is None:
        raise NotFound(
            f"the service's ledger does not know request {request_id}",
            remedy="check the id, the endpoint and the token's tenant; or copy the output root and give --source",
            code="native_outputs_missing",
        )
    if not view.state.ended:
        raise Refusal(
            f"request {request_id} still runs ({view.state})",
            remedy="continue it with ray-batch --resume, or wait until it ended",
            code="batch_not_ended",
        )
    if view.state is BatchState.EXPIRED:
        raise Refusal(
            f"request {request_id} ended long ago and the service's retention removed its outputs",
            remedy="only a copy that was made before can be recovered: give --source",
            code="batch_expired",
        )


def _expected(order: RecoverOrder, origin: Origin) -> str:
    """As on resume: a revision that the command line names counts, else what the first attempt expected."""
    given = order.expected_revision
    return origin.attempt.expected_revision if origin.attempt and given == FRAMEWORK_REVISION else given
