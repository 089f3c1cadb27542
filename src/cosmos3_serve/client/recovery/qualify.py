"""Qualify retained outputs: bind every sample's native records and files to the original request, name every mismatch.

What merely has no result is missing, and may be left out with `--allow-partial`. What contradicts the request, the
other records or a known hash is a finding, and a single one refuses the whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cosmos3_serve.client.recovery.native_files import Entry, Natives
from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.contract.binding import PartialBinding, bind_partial
from cosmos3_serve.contract.jsontext import JsonProblem, check_json, decode_json
from cosmos3_serve.contract.native import INPUTS, UNDECLARED, NativeProblem, NativeResult, bind_native
from cosmos3_serve.contract.records import MAX_DEPTH, Artifact, SampleRecord
from cosmos3_serve.contract.recovery import NativeFile
from cosmos3_serve.contract.wire import SAMPLE_ARGS, SAMPLE_OUTPUTS, is_safe_name
from cosmos3_serve.errors import ContractViolation, InputError
from cosmos3_serve.storage.files import in_thread

MAX_JSON_BYTES = 32 * 1024 * 1024
MAX_JSON_NODES = 2_000_000
SHOWN_PER_KIND = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong; `sample` is empty where it concerns the whole request."""

    code: str
    message: str
    sample: str = ""
    file: str = ""


@dataclass
class Qualified:
    """What was found. `bound` is the ledger's response, bound to the request, where there is one."""

    results: dict[str, NativeResult] = field(default_factory=dict)
    artifacts: list[Artifact] = field(default_factory=list)
    natives: list[NativeFile] = field(default_factory=list)
    missing: dict[str, Finding] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    response: bytes | None = None
    bound: PartialBinding | None = None
    native_records: bool = False

    def add(self, problem: NativeProblem, sample: str) -> None:
        finding = Finding(problem.code, problem.message, sample, problem.file)
        if problem.code in ("native_sample_failed", "native_sample_missing"):
            self.missing[sample] = finding
        else:
            self.findings.append(finding)

    def take(self, result: NativeResult, artifacts: Sequence[Artifact]) -> None:
        self.results[result.name] = result
        self.artifacts += artifacts

    @property
    def records(self) -> Mapping[str, SampleRecord]:
        return {record.name: record for record in self.bound.response.samples} if self.bound else {}


class DirectoryQualifier:
    """Args:
    hashes: path relative to the output root to the SHA-256 that its file must have, from `parse_hashes`.
    """

    def __init__(self, request: BatchRequest, natives: Natives, hashes: Mapping[str, str] | None) -> None:
        self.request, self.natives, self.hashes = request, natives, hashes
        self.found = Qualified(native_records=True)

    async def run(self, response: bytes | None, expected_revision: str) -> Qualified:
        """
        Args:
            response: the ledger's response, where the copy holds it.

        Raises:
            StorageFailure, LimitExceeded: the copy cannot be read.
        """
        self._strays()
        for sample in self.request.samples:
            try:
                await self._sample(sample)
            except NativeProblem as problem:
                self.found.add(problem, sample["name"])
        if response is not None:
            await in_thread(bind_ledger, self.found, self.request, response, expected_revision)
        return self.found

    def _strays(self) -> None:
        """Names beside the samples: the engine's input folder is known, anything else is not."""
        names = set(self.request.names)
        for path, entry in self.natives.entries.items():
            _, first, *rest = path.split("/", 2)
            if first in names and rest:
                continue
            if entry.kind == "link":
                self._finding("native_symlink", "it is a link", path)
            elif first == INPUTS and rest:
                self.found.ignored.append(path)
            else:
                self._finding("native_extra_file", "it belongs to no requested sample", path)

    def _finding(self, code: str, message: str, path: str, sample: str = "") -> None:
        if sum(found.code == code for found in self.found.findings) < SHOWN_PER_KIND:
            self.found.findings.append(Finding(code, message, sample, path))

    async def _sample(self, sample: dict[str, Any]) -> None:
        name = sample["name"]
        home = f"{self.request.request_id}/{name}/"
        mine = {p.removeprefix(home): e for p, e in self.natives.entries.items() if p.startswith(home)}
        for file, entry in mine.items():
            self._check_name(file, entry)
        if not mine or set(mine) == {SAMPLE_ARGS}:
            raise NativeProblem("native_sample_missing", "the engine left no result of it")
        if set(mine) == {SAMPLE_OUTPUTS}:
            await self._never_began(home, name, mine)
        (args, args_file), (outputs, outputs_file) = [
            await self._record(home, file, mine) for file in (SAMPLE_ARGS, SAMPLE_OUTPUTS)
        ]
        result = await in_thread(bind_native, sample, self.request.request_id, args, outputs)
        declared = [path.removeprefix(home) for path in result.files]
        for file in declared:
            if file not in mine:
                raise NativeProblem("native_file_missing", "it is declared and not there", file)
        self._check_extra(home, mine, {SAMPLE_ARGS, SAMPLE_OUTPUTS, *declared})
        artifacts = [await self._artifact(home + file, name, mine[file]) for file in declared]
        self.found.take(result, artifacts)
        files = [self._native(item, name) for item in (args_file, outputs_file)]
        files += [self._native((artifact.path, artifact.bytes, artifact.sha256), name) for artifact in artifacts]
        self.found.natives += files

    async def _never_began(self, home: str, name: str, mine: Mapping[str, Entry]) -> None:
        """Our engine keeps no args of a sample that it never began (cancelled before its first step)."""
        outputs, _ = await self._record(home, SAMPLE_OUTPUTS, mine)
        result = outputs if isinstance(outputs, dict) else {}
        args = result.get("args")
        status = result.get("status")
        if isinstance(args, dict) and args.get("name") == name and status in ("error", "skip"):
            raise NativeProblem("native_sample_failed", f"status is {status}: {result.get('message')}", SAMPLE_OUTPUTS)

    def _check_name(self, file: str, entry: Entry) -> None:
        if entry.kind == "link":
            raise NativeProblem("native_symlink", "it is a link; links are not followed", file)
        if entry.kind == "special":
            raise NativeProblem("native_not_regular", "it is no regular file", file)
        if not file.startswith(f"{INPUTS}/") and not all(map(is_safe_name, file.split("/"))):
            raise NativeProblem("native_path_escape", "its name is not a safe name", file)

    def _check_extra(self, home: str, mine: Mapping[str, Entry], known: set[str]) -> None:
        for file in sorted(mine.keys() - known):
            if file in UNDECLARED or file.startswith(f"{INPUTS}/"):
                self.found.ignored.append(home + file)
            else:
                raise NativeProblem("native_extra_file", "no record declares it", file)

    async def _record(self, home: str, file: str, mine: Mapping[str, Entry]) -> tuple[object, tuple[str, int, str]]:
        entry = mine.get(file)
        if entry is None:
            raise NativeProblem("native_file_missing", "it is not there", file)
        if entry.size > MAX_JSON_BYTES:
            text = f"it has {entry.size} bytes, the limit is {MAX_JSON_BYTES}"
            raise NativeProblem("native_json_oversized", text, file)
        data = await self.natives.read(home + file, MAX_JSON_BYTES)
        return await in_thread(_decoded, data, file), (home + file, len(data), hashlib.sha256(data).hexdigest())

    async def _artifact(self, path: str, sample: str, entry: Entry) -> Artifact:
        size, digest = await self.natives.hash(path)
        if not size:
            raise NativeProblem("native_media_invalid", "it is empty", path)
        if size != entry.size:
            raise NativeProblem("native_media_altered", "it changed while it was read", path)
        return Artifact(sample=sample, path=path, bytes=size, sha256=digest)

    def _native(self, item: tuple[str, int, str], sample: str) -> NativeFile:
        path, size, digest = item
        file = path.rsplit("/", 1)[-1]
        if self.hashes is not None:
            if path not in self.hashes:
                self._finding("native_hash_unknown", "the list of hashes does not name it", path, sample)
            elif self.hashes[path] != digest:
                self._finding("native_media_altered", "its hash is not that of the list", path, sample)
        return NativeFile(
            sample=sample,
            path=path,
            role={SAMPLE_ARGS: "args", SAMPLE_OUTPUTS: "outputs"}.get(file, "artifact"),
            bytes=size,
            sha256=digest,
            checked_against="nothing" if self.hashes is None else "hashes",
        )


def _decoded(data: bytes, file: str) -> object:
    try:
        value = decode_json(data)
        check_json(value, max_depth=MAX_DEPTH, max_nodes=MAX_JSON_NODES)
    except InputError as error:
        raise NativeProblem("native_json_invalid", error.detail.replace("body", "it", 1), file) from None
    except JsonProblem as problem:
        raise NativeProblem("native_json_invalid", f"it {problem.message}", file) from None
    return value


def bind_ledger(found: Qualified, request: BatchRequest, response: bytes, expected_revision: str) -> None:
    """Hold the copied files against the response that the ledger beside them kept. Blocking."""
    try:
        bound = bind_partial(request, decode_json(response), expected_revision=expected_revision)
    except (ContractViolation, InputError) as error:
        code = error.stable_code if error.stable_code == "revision_mismatch" else "native_ledger_disagrees"
        found.findings.append(Finding(code, error.detail, file="response.json"))
        return
    found.response, found.bound = response, bound
    listed = {artifact.path: artifact for artifact in bound.artifacts}
    for verdict in bound.verdicts:
        if verdict.complete != (verdict.name in found.results) and not _told(found, verdict.name):
            text = "the ledger and the files disagree about whether it has a result"
            found.findings.append(Finding("native_ledger_disagrees", text, verdict.name))
    for artifact in found.artifacts:
        if artifact.path in listed and listed[artifact.path] != artifact:
            text = "its size or hash is not what the ledger declares"
            found.findings.append(Finding("native_media_altered", text, artifact.sample, artifact.path))
        elif artifact.path not in listed and artifact.sample in bound.complete:
            text = "the ledger does not declare it"
            found.findings.append(Finding("native_ledger_disagrees", text, artifact.sample, artifact.path))
    found.natives = [
        native.model_copy(update={"checked_against": "ledger"}) if native.path in listed else native
        for native in found.natives
    ]


def _told(found: Qualified, name: str) -> bool:
    return any(finding.sample == name for finding in found.findings)


def qualify_ledger(request: BatchRequest, response: bytes, expected_revision: str) -> Qualified:
    """Qualify what a service's ledger answers over HTTP: its exact response, whose hashes the artifacts must have.

    Raises:
        ContractViolation: the response as such is not one to this request. Blocking.
    """
    bound = bind_partial(request, decode_json(response), expected_revision=expected_revision)
    found = Qualified(response=response, bound=bound)
    results = {result["args"]["name"]: result for result in bound.response.outputs}
    files: dict[str, list[Artifact]] = {}
    for artifact in bound.artifacts:
        files.setdefault(artifact.sample, []).append(artifact)
    for sample, verdict in zip(request.samples, bound.verdicts, strict=True):
        name, result = verdict.name, results[verdict.name]
        try:
            if result.get("status") != "success":
                raise NativeProblem("native_sample_failed", f"{verdict.code}: {verdict.message}")
            native = bind_native(sample, request.request_id, result["args"], result)
            if not verdict.complete:
                raise NativeProblem("native_outputs_invalid", verdict.message)
        except NativeProblem as problem:
            found.add(problem, name)
            continue
        artifacts = files.get(name, [])
        found.take(native, artifacts)
        found.natives += [
            NativeFile(
                sample=name, path=a.path, role="artifact", bytes=a.bytes, sha256=a.sha256, checked_against="ledger"
            )
            for a in artifacts
        ]
    return found
