"""What --input-path names as a queue: a folder, a glob or an S3 prefix of batch files, or one file of samples by line.

Read as a stream; at most one line or one batch file is held at a time.
"""

from __future__ import annotations

import asyncio
import glob
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any, Self

from cosmos3_serve.contract.jsontext import decode_json
from cosmos3_serve.contract.wire import MODEL_NAME
from cosmos3_serve.errors import FieldError, InputError, LimitExceeded, NotFound, UsageError, ValidationFailed
from cosmos3_serve.queue.split import Sourced
from cosmos3_serve.settings import MIB
from cosmos3_serve.storage.files import in_thread
from cosmos3_serve.storage.location import open_object, open_store
from cosmos3_serve.storage.store import ObjectStore
from cosmos3_serve.storage.uri import SCHEME, parse_s3

LINES = (".jsonl", ".ndjson")
BATCH = ".json"
MAX_FILE_BYTES = 64 * MIB  # of one batch file
MAX_LINE_BYTES = 8 * MIB
MAX_FILES = 100_000
AHEAD = 16  # batch files that are read at once
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file. `name` is relative to what was named, and tells people where a sample came from.

    Attributes:
        size: bytes when it was listed; 0 where it was not.
    """

    name: str
    store: ObjectStore
    key: str
    size: int = 0

    @property
    def by_line(self) -> bool:
        return self.name.lower().endswith(LINES)

    @property
    def stem(self) -> str:
        return PurePosixPath(self.name).stem


@dataclass(frozen=True, slots=True)
class Start:
    """A batch begins: no part spans two. Samples of a file by line belong to one batch of the model."""

    file: InputFile
    model: Any
    request_id: Any


class Fingerprint:
    """SHA-256 over all input bytes, in order; of several files with their names."""

    def __init__(self, files: Sequence[InputFile]) -> None:
        self._whole, self._named = hashlib.sha256(), len(files) > 1
        self._file = hashlib.sha256()

    def update(self, data: bytes) -> None:
        self._file.update(data)

    def end(self, file: InputFile) -> None:
        name = file.name.encode("utf-8", "surrogatepass") + b"\0" if self._named else b""
        self._whole.update(name + self._file.digest())
        self._file = hashlib.sha256()

    def hexdigest(self) -> str:
        return self._whole.hexdigest()


def is_queue(input_path: str) -> bool:
    """Whether a path names many batches or samples by line, rather than one batch file."""
    text = input_path.strip()
    if text.lower().endswith(LINES):
        return True
    if text[: len(SCHEME)].lower() == SCHEME:
        return text.endswith("/") or "*" in text or "/" not in text[len(SCHEME) :]
    if not text:
        return False
    return Path(text).is_dir() or (glob.has_magic(text) and not Path(text).exists())


async def input_files(input_path: str, environ: Mapping[str, str] | None = None) -> list[InputFile]:
    """The files in order of their names.

    Raises:
        UsageError: code `no_input_files`: there are none.
        LimitExceeded: more than 100,000.
        NotFound, StorageFailure, StorageAuthorizationError: storage would not list them.
    """
    text = input_path.strip()
    if text[: len(SCHEME)].lower() == SCHEME:
        found = await _in_bucket(text, environ)
    else:
        found = await in_thread(_on_disk, text)
    if not found:
        raise UsageError(
            f"no input: {text} holds no {BATCH} or {LINES[0]} files",
            remedy="name a folder, a glob or an S3 prefix (ending in /) of batch files, or one file of samples by line",
            code="no_input_files",
        )
    if len(found) > MAX_FILES:
        raise LimitExceeded(
            f"{len(found)} input files, the limit is {MAX_FILES}", remedy="put the samples into one .jsonl file"
        )
    return found


async def _in_bucket(text: str, environ: Mapping[str, str] | None) -> list[InputFile]:
    if text.lower().endswith(LINES) and "*" not in text:
        store, key = open_object(text, environ)
        return [InputFile(PurePosixPath(key).name, store, key)]
    uri = parse_s3(text)
    pattern = uri.key if "*" in uri.key else ""
    prefix = uri.key.partition("*")[0].rpartition("/")[0] if pattern else uri.key
    store = open_store(f"{SCHEME}{uri.bucket}/", environ).store
    found = []
    async for info in store.list(prefix):
        if pattern and not fnmatchcase(info.key, pattern):
            continue
        name = info.key.removeprefix(f"{prefix}/") if prefix else info.key
        if _wanted(name):
            found.append(InputFile(name, store, info.key, info.size))
            if len(found) > MAX_FILES:
                break
    return sorted(found, key=lambda file: file.name)


def _on_disk(text: str) -> list[InputFile]:
    path = Path(text)
    if path.is_dir():
        base, names = path, [p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()]
    elif path.is_file():
        base, names = path.parent, [path.name]
    else:
        fixed = takewhile(lambda part: not glob.has_magic(part), path.parts)
        base = Path(*fixed)
        found_here = (Path(name) for name in glob.glob(text, recursive=True))  # noqa: PTH207 (takes absolute patterns)
        names = [p.relative_to(base).as_posix() for p in found_here if p.is_file()]
    found = []
    for name in sorted(names):
        if _wanted(name):
            store, key = open_object(str((base / name).absolute()))
            found.append(InputFile(name, store, key, (base / name).stat().st_size))
    return found


def _wanted(name: str) -> bool:
    hidden = any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))
    return name.lower().endswith((BATCH, *LINES)) and not hidden


class _Ahead:
    """Batch files in order, the next ones already being read: a thousand small files cost few round trips in turn.

    At most 16 files, and 64 MiB besides the one that is asked for, are in memory.
    """

    def __init__(self, files: Sequence[InputFile]) -> None:
        self._left = deque(file for file in files if not file.by_line)
        self._reads: deque[tuple[InputFile, asyncio.Task[bytes]]] = deque()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for _, read in self._reads:
            read.cancel()
        await asyncio.gather(*(read for _, read in self._reads), return_exceptions=True)

    async def next(self) -> bytes:
        """All bytes of the next batch file."""
        self._begin()
        data = await self._reads[0][1]
        self._reads.popleft()
        self._begin()
        return data

    def _begin(self) -> None:
        held = sum(file.size for file, _ in self._reads)
        while self._left and len(self._reads) < AHEAD:
            held += self._left[0].size
            if self._reads and held > MAX_FILE_BYTES:
                return
            file = self._left.popleft()
            self._reads.append((file, asyncio.create_task(_whole(file))))


async def _whole(file: InputFile) -> bytes:
    async with aclosing(file.store.get_stream(file.key, max_bytes=MAX_FILE_BYTES)) as chunks:
        return b"".join([chunk async for chunk in chunks])


async def fingerprint(files: Sequence[InputFile]) -> str:
    """The hash of all input, without parsing it."""
    found = Fingerprint(files)
    async with _Ahead(files) as ahead:
        for file in files:
            if file.by_line:
                async with aclosing(file.store.get_stream(file.key)) as chunks:
                    async for chunk in chunks:
                        await in_thread(found.update, chunk)
            else:
                await in_thread(found.update, await ahead.next())
            found.end(file)
    return found.hexdigest()


async def read_all(files: Sequence[InputFile], found: Fingerprint) -> AsyncIterator[Start | Sourced | ValidationFailed]:
    """Every batch and sample, in order; a line or file that is no JSON comes as the failure itself.

    Raises:
        LimitExceeded: a line or a batch file is too large.
        NotFound, StorageFailure: a file could not be read.
    """
    async with _Ahead(files) as ahead:
        for file in files:
            try:
                if file.by_line:
                    yield Start(file, MODEL_NAME, "")
                    async for line in _by_line(file, found):
                        yield line
                else:
                    data = await ahead.next()
                    await in_thread(found.update, data)
                    for item in await in_thread(_batch, file, data):
                        yield item
            except NotFound as error:
                raise NotFound(f"{file.name}: {error.detail}", remedy=error.remedy, code=error.stable_code) from None
            found.end(file)


async def _by_line(file: InputFile, found: Fingerprint) -> AsyncIterator[Sourced | ValidationFailed]:
    rest, number = b"", 0
    async with aclosing(file.store.get_stream(file.key)) as chunks:
        async for chunk in chunks:
            await in_thread(found.update, chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                number += 1
                if (item := _line(file, number, line)) is not None:
                    yield item
            if len(rest) > MAX_LINE_BYTES:
                raise LimitExceeded(
                    f"{file.name}:{number + 1}: the line is longer than {MAX_LINE_BYTES} bytes",
                    remedy="write one sample a line",
                )
    if (item := _line(file, number + 1, rest)) is not None:
        yield item


def _line(file: InputFile, number: int, line: bytes) -> Sourced | ValidationFailed | None:
    where = f"{file.name}:{number}"
    line = line.removeprefix(_BOM) if number == 1 else line
    if not line.strip():
        return None
    try:
        sample = decode_json(line)
    except InputError as error:
        return _no_json(where, error.detail)
    if not isinstance(sample, dict):
        return _no_json(where, "a line should be one sample, a JSON object")
    return Sourced(sample, where)


def _batch(file: InputFile, data: bytes) -> list[Start | Sourced | ValidationFailed]:
    try:
        obj = decode_json(data)
    except InputError as error:
        return [_no_json(file.name, error.detail)]
    obj = {"samples": obj} if isinstance(obj, list) else obj
    samples = obj.get("samples") if isinstance(obj, dict) else None
    if not isinstance(samples, list) or not samples or not all(isinstance(sample, dict) for sample in samples):
        return [_no_json(file.name, "should be a list of samples, or an object with `samples`")]
    start = Start(file, obj.get("model", MODEL_NAME), obj.get("request_id", ""))
    return [start, *(Sourced(sample, f"{file.name}: samples[{index}]") for index, sample in enumerate(samples))]


def _no_json(where: str, detail: str) -> ValidationFailed:
    remedy = 'write {"name": …}, one JSON object a line' if ":" in where else 'write {"samples": [{"name": …}]}'
    return ValidationFailed(
        f"{where}: {detail}", errors=[FieldError(where, detail, remedy)], remedy=remedy, code="invalid_json"
    )
