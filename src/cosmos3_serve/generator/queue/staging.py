"""Staging: the inputs of a batch, fetched from allowed S3 roots into files that the engine reads.

Everything that can be refused is refused by `check` before the batch is accepted and before anything is fetched. What
goes wrong later (object gone, storage down, too large) fails the sample that needed it and no other. An object that
several samples of a batch name is fetched once, and removed as soon as the last of them is over.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cosmos3_serve.contract.findings import prefixed
from cosmos3_serve.contract.inputs import InputField, scan_inputs, server_owned_findings
from cosmos3_serve.contract.inputs import Path as FieldPath
from cosmos3_serve.errors import (
    Cosmos3Error,
    FieldError,
    LimitExceeded,
    NotFound,
    SampleCode,
    SampleError,
    StorageAuthorizationError,
)
from cosmos3_serve.generator.ledger.files import PRIVATE, BatchFiles, remove
from cosmos3_serve.generator.ports import NoObserver, Observer
from cosmos3_serve.storage.location import open_store
from cosmos3_serve.storage.roots import AllowedRoots
from cosmos3_serve.storage.store import Downloaded, ObjectStore
from cosmos3_serve.storage.uri import S3Uri, parse_s3, require_object

MAX_TEXT_BYTES = 64 * 1024  # docs/contract.md 6


@dataclass(frozen=True, slots=True)
class Staged:
    """The inputs of one sample.

    Attributes:
        files: place of the field to the absolute local path.
        texts: place of the field to the text of the object.
        records: what provenance keeps of each input (field, uri, bytes, sha256).
    """

    files: Mapping[FieldPath, str]
    texts: Mapping[FieldPath, str]
    records: Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Fetched:
    size: int
    sha256: str
    path: Path | None = None
    text: str | None = None


@dataclass(slots=True)
class _Object:
    """One object that a batch needs: by whom, and its fetch once somebody asked."""

    uri: S3Uri
    as_text: bool
    ordinal: int
    needed_by: set[int] = field(default_factory=set)
    fetch: asyncio.Task[_Fetched] | None = None


@dataclass(slots=True)
class _Plan:
    fields: Mapping[int, Sequence[InputField]]
    objects: dict[tuple[S3Uri, bool], _Object]


class Stager:
    """Args:
    output_root: files go to `<output_root>/.cosmos3/staging/<request_id>/<ordinal><suffix>`, directory mode 0700.
    roots: what may be read; none refuses every input.
    max_bytes, timeout_s: bounds of one object.
    parallel: objects fetched at once, over all batches.
    store_of: the store of a bucket.
    """

    def __init__(
        self,
        output_root: Path,
        roots: AllowedRoots,
        *,
        max_bytes: int,
        timeout_s: float,
        parallel: int = 4,
        store_of: Callable[[S3Uri], ObjectStore] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._root = output_root.absolute()
        self._home = output_root.absolute() / PRIVATE / "staging"
        self._roots = roots
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(parallel)
        self._store_of = store_of or (lambda uri: open_store(f"s3://{uri.bucket}").store)
        self._observer = observer or NoObserver()
        self._plans: dict[str, _Plan] = {}

    def check_uri(self, uri: str) -> None:
        """Raises StorageAuthorizationError unless the URI names one object that may be read, under exactly its name."""
        self._roots.authorize(require_object(parse_s3(uri)))

    def uploads(self, request_id: str) -> list[str]:
        """Names of the files that came with a batch's request. Reads a directory."""
        return BatchFiles(self._root, request_id).upload_names()

    def check(self, samples: Sequence[Mapping[str, Any]], uploads: Collection[str] = ()) -> dict[int, list[InputField]]:
        """The inputs of each sample that has any, after every rule of docs/contract.md 6. Nothing is fetched.

        Args:
            uploads: names of the files that came with the request.

        Raises:
            StorageAuthorizationError: the detail is the first finding's text, `errors` are all of them.
        """
        inputs: dict[int, list[InputField]] = {}
        owned: list[FieldError] = []
        found: list[FieldError] = []
        code: str | None = None
        for index, sample in enumerate(samples):
            place = f"samples[{index}]"
            owned += prefixed(place, server_owned_findings(sample))
            fields, problems = scan_inputs(sample, uploads)
            found += prefixed(place, problems)
            for item in fields:
                if item.upload is not None:
                    continue
                try:
                    self.check_uri(item.uri)
                except StorageAuthorizationError as error:
                    code = code or error.stable_code
                    found += prefixed(place, [FieldError(item.field, error.detail, error.remedy)])
            if fields:
                inputs[index] = fields
        if owned or found:
            first = (owned + found)[0]
            raise StorageAuthorizationError(
                first.message, remedy=first.remedy, errors=owned + found, code=None if owned else code
            )
        return inputs

    def open(self, request_id: str, inputs: Mapping[int, Sequence[InputField]]) -> None:
        """Plan a batch's inputs (checked before); nothing is fetched yet."""
        objects: dict[tuple[S3Uri, bool], _Object] = {}
        for index, fields in inputs.items():
            for item in fields:
                if item.upload is not None:
                    continue
                uri = parse_s3(item.uri)
                known = objects.setdefault((uri, item.is_text), _Object(uri, item.is_text, len(objects)))
                known.needed_by.add(index)
        if inputs:
            self._plans[request_id] = _Plan(inputs, objects)

    async def stage(self, request_id: str, index: int) -> Staged:
        """Fetch what one sample needs.

        Raises:
            SampleError: `staging_failed` (storage or disk, may be retried) or `input_invalid` (too large, no UTF-8).
        """
        plan = self._plans[request_id]
        fields = plan.fields[index]
        fetches = [
            asyncio.create_task(self._uploaded(request_id, item.upload))
            if item.upload is not None
            else self._fetch(request_id, plan.objects[parse_s3(item.uri), item.is_text])
            for item in fields
        ]
        await asyncio.wait(fetches)  # not gather: a fetch may belong to other samples too, so nothing here ends it
        for fetch in fetches:
            _retrieve(fetch)
        files: dict[FieldPath, str] = {}
        texts: dict[FieldPath, str] = {}
        records: list[dict[str, Any]] = []
        for item, fetch in zip(fields, fetches, strict=True):
            try:
                got = fetch.result()
            except asyncio.CancelledError:
                raise SampleError(SampleCode.CANCELLED, "the batch was cancelled") from None
            except Exception as error:
                raise _sample_error(item.field, error) from None
            if got.text is not None:
                texts[item.path] = got.text
            else:
                files[item.path] = str(got.path)
            records.append({"field": item.field, "uri": item.uri, "bytes": got.size, "sha256": got.sha256})
        return Staged(files, texts, records)

    async def release(self, request_id: str, index: int) -> None:
        """The sample is over: remove what nobody else of its batch needs."""
        plan = self._plans.get(request_id)
        for item in list(plan.objects.values()) if plan else []:
            if index in item.needed_by:
                item.needed_by.discard(index)
                if not item.needed_by:
                    await self._drop(request_id, item)

    async def close(self, request_id: str) -> None:
        """The batch is over: nothing of its inputs stays."""
        plan = self._plans.pop(request_id, None)
        if plan is not None:
            for item in plan.objects.values():
                await self._drop(request_id, item)
            await asyncio.to_thread(remove, self._home / request_id)

    # ---- inside

    def _path(self, request_id: str, item: _Object) -> Path:
        return self._home / request_id / f"{item.ordinal}{item.uri.staged_suffix}"

    def _fetch(self, request_id: str, item: _Object) -> asyncio.Task[_Fetched]:
        """The object's one fetch; another is tried only after a failure that may pass."""
        if item.fetch is None or (item.fetch.done() and _may_pass(item.fetch)):
            work = self._text(item) if item.as_text else self._file(item, self._path(request_id, item))
            item.fetch = asyncio.create_task(work)
        return item.fetch

    async def _file(self, item: _Object, path: Path) -> _Fetched:
        async with self._slots:
            store = self._store_of(item.uri)
            await asyncio.to_thread(_make_private, path.parent)
            done: Downloaded = await store.download(
                item.uri.key, path, max_bytes=self._max_bytes, timeout_s=self._timeout_s
            )
        self._observer.bytes("staged", done.size)
        return _Fetched(done.size, done.sha256, path=path)

    async def _uploaded(self, request_id: str, name: str) -> _Fetched:
        path = BatchFiles(self._root, request_id).upload(name)
        data = await asyncio.to_thread(path.read_bytes)  # no larger than the request's body
        return _Fetched(len(data), hashlib.sha256(data).hexdigest(), path=path)

    async def _text(self, item: _Object) -> _Fetched:
        data = bytearray()
        async with self._slots, asyncio.timeout(self._timeout_s):
            chunks = self._store_of(item.uri).get_stream(item.uri.key, max_bytes=MAX_TEXT_BYTES)
            async with aclosing(chunks):
                async for chunk in chunks:
                    data += chunk
        self._observer.bytes("staged", len(data))
        return _Fetched(len(data), hashlib.sha256(data).hexdigest(), text=data.decode("utf-8"))

    async def _drop(self, request_id: str, item: _Object) -> None:
        if item.fetch is not None:
            item.fetch.cancel()
            await asyncio.wait([item.fetch])
            _retrieve(item.fetch)
            item.fetch = None
        if not item.as_text:
            await asyncio.to_thread(self._path(request_id, item).unlink, missing_ok=True)


def _make_private(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.mkdir(exist_ok=True, mode=0o700)


def _retrieve(fetch: asyncio.Task[_Fetched]) -> None:
    """Look at a failure, so that asyncio doesn't report it as lost when no sample asks about it any more."""
    if not fetch.cancelled():
        fetch.exception()


def _may_pass(fetch: asyncio.Task[_Fetched]) -> bool:
    if fetch.cancelled():
        return True
    error = fetch.exception()
    return error is not None and not isinstance(error, NotFound | LimitExceeded | UnicodeError)


def _sample_error(name: str, error: Exception) -> SampleError:
    """What a failed fetch means for a sample; the URI is the client's own and is named by its field."""
    if isinstance(error, LimitExceeded):
        return SampleError(SampleCode.INPUT_INVALID, f"{name}: {error.detail}")
    if isinstance(error, UnicodeError):
        return SampleError(SampleCode.INPUT_INVALID, f"{name}: the object is not UTF-8 text")
    if isinstance(error, TimeoutError):
        return SampleError(SampleCode.STAGING_FAILED, f"{name}: the object was not fetched in time")
    detail = error.detail if isinstance(error, Cosmos3Error) else type(error).__name__
    return SampleError(SampleCode.STAGING_FAILED, f"{name}: {detail}")
