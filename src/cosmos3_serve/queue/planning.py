"""Make the plan of a queue once, at its output place, or join the one that is there."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cosmos3_serve.contract.limits import MAX_FINDINGS
from cosmos3_serve.contract.wire import is_safe_name
from cosmos3_serve.errors import Conflict, FieldError, InputError, StorageFailure, ValidationFailed
from cosmos3_serve.publication.layout import PROVENANCE, REQUEST
from cosmos3_serve.publication.pool import Pool
from cosmos3_serve.queue import sources
from cosmos3_serve.queue.batches import BATCHES
from cosmos3_serve.queue.place import PLAN, QueuePlace, batch_name
from cosmos3_serve.queue.records import Kind, Limits, Plan, PlannedPart, sha256_of
from cosmos3_serve.queue.sources import Fingerprint, InputFile, Start
from cosmos3_serve.queue.split import Group, Sourced, Splitter, part_name
from cosmos3_serve.queue.work import PartFormat
from cosmos3_serve.storage.files import in_thread

WRITES = 16  # batches of parts that are stored at once
ANOTHER = "choose another --output-path, or name the same input; nothing is ever overwritten"


async def join(
    place: QueuePlace, input_path: str, environ: Mapping[str, str] | None = None, kind: Kind = Kind.GENERATOR
) -> Plan | None:
    """The plan at the place, if there is one; with an input it must be that plan's.

    Raises:
        Conflict: code `queue_differs`: the place is that of another input, or of another kind of queue.
    """
    plan = await place.plan()
    if plan is not None:
        _require_kind(plan, kind)
    if plan is not None and input_path.strip():
        files = await sources.input_files(input_path, environ)
        _require_same(plan, await sources.fingerprint(files))
    return plan


async def make(
    place: QueuePlace | None,
    input_path: str,
    limits: Limits,
    environ: Mapping[str, str] | None = None,
    *,
    form: PartFormat = BATCHES,
    clock: Callable[[], float] = time.time,
) -> Plan:
    """Check and split the input, store every part's batch, then the plan; without a place only the plan is made.

    Raises:
        InputError: exit code 2: the input is wrong; `errors` lists up to 100 findings with file and line.
        Conflict: code `publication_exists`: a single batch was published there; `queue_differs`.
        UsageError, StorageFailure: as `ObjectStore.prove`, before anything is read.
    """
    files = await sources.input_files(input_path, environ)
    if place is not None:
        await place.store.prove(place.location.prefix, swap=True)
        await _require_free(place)
    planner = _Planner(place, limits, form, secrets.token_hex(8))
    try:
        async with planner.writes:
            parts = await planner.plan(files)
    except BaseException:
        if place is not None:
            await place.remove_batches(planner.queue_id)
        raise
    plan = Plan(
        kind=form.kind,
        queue_id=planner.queue_id,
        created_at=clock(),
        source=input_path.strip(),
        source_sha256=planner.fingerprint,
        limits=limits,
        parts=tuple(parts),
    )
    if place is None or await place.create(PLAN, plan.to_bytes()):
        return plan
    await place.remove_batches(planner.queue_id)  # another worker planned meanwhile
    stored = await place.plan()
    if stored is None:
        raise StorageFailure("storage says that the plan exists, and does not show it", code="storage_unavailable")
    _require_kind(stored, form.kind)
    _require_same(stored, plan.source_sha256)
    return stored


def _require_kind(plan: Plan, kind: Kind) -> None:
    if plan.kind is not kind:
        raise Conflict(f"the output place holds a queue for the {plan.kind}", remedy=ANOTHER, code="queue_differs")


def _require_same(plan: Plan, source_sha256: str) -> None:
    if plan.source_sha256 != source_sha256:
        raise Conflict("the output place holds a queue of another input", remedy=ANOTHER, code="queue_differs")


async def _require_free(place: QueuePlace) -> None:
    for name in (PROVENANCE, REQUEST):
        if await place.store.head(place.location.key(name)) is not None:
            raise Conflict(f"the output place holds a single batch ({name})", remedy=ANOTHER, code="publication_exists")


@dataclass
class _Planner:
    place: QueuePlace | None
    limits: Limits
    form: PartFormat
    queue_id: str
    fingerprint: str = ""
    parts: list[PlannedPart] = field(default_factory=list)
    errors: list[FieldError] = field(default_factory=list)
    first: InputError | None = None
    seen: set[bytes] = field(default_factory=set)  # digests of the names of samples by line
    request_ids: set[str] = field(default_factory=set)
    writes: Pool = field(default_factory=lambda: Pool(WRITES))

    async def plan(self, files: Sequence[InputFile]) -> list[PlannedPart]:
        found = Fingerprint(files)
        start: Start | None = None
        splitter = Splitter(self.limits, self.form.item_bytes)
        groups: list[Group] = []
        async for item in sources.read_all(files, found):
            if len(self.errors) >= MAX_FINDINGS:
                break
            if isinstance(item, ValidationFailed):
                self._wrong(item)
            elif isinstance(item, Start):
                await self._end(start, [*groups, *splitter.rest()])
                start, groups = item, []
            elif start is not None:
                if start.file.by_line:
                    self._name_once(item)
                for group in splitter.add(item):
                    # A file by line has no id of its own, so its parts need not wait for each other.
                    if start.file.by_line:
                        await self._end(start, [group])
                    else:
                        groups.append(group)
        await self._end(start, [*groups, *splitter.rest()])
        if self.first is not None:
            raise ValidationFailed(
                self.first.detail if len(self.errors) < 2 else f"{self.first.detail} (and {len(self.errors) - 1} more)",
                remedy=self.first.remedy,
                errors=self.errors[:MAX_FINDINGS],
                code=self.first.stable_code,
            )
        if not self.parts:
            raise ValidationFailed("the input is empty", remedy=f'write one {{"{self.form.key}": …}} a line')
        self.fingerprint = found.hexdigest()
        return self.parts

    def _wrong(self, error: InputError) -> None:
        self.first = self.first or error
        self.errors += error.errors or (FieldError("", error.detail, error.remedy),)

    def _name_once(self, item: Sourced) -> None:
        key = self.form.key
        name = str(item.sample.get(key))
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest in self.seen:
            message, remedy = f"the {key} {name[:64]!r} stands on an earlier line", f"give each line a {key} of its own"
            self._wrong(
                ValidationFailed(
                    f"{item.where}: {message}", errors=[FieldError(item.where, message, remedy)], remedy=remedy
                )
            )
        self.seen.add(digest)

    async def _end(self, start: Start | None, groups: list[Group]) -> None:
        if start is None:
            return
        given = start.request_id
        for number, group in enumerate(groups, 1):
            name = part_name(len(self.parts) + 1, "" if start.file.by_line else start.file.stem)
            request_id = f"q{self.queue_id}-{len(self.parts) + 1:05}"
            if isinstance(given, str) and given:
                request_id = given if len(groups) == 1 else f"{given}-{number}"
            try:
                data = await in_thread(self.form.body, group, start, request_id)
                self._id_once(request_id, start)
            except InputError as error:
                self._wrong(error)
                continue
            if self.place is not None and self.first is None:
                await self.writes.add(self.place.create(batch_name(self.queue_id, name), data))
            self.parts.append(
                PlannedPart(
                    name=name,
                    request_id=request_id,
                    samples=len(group.samples),
                    bytes=len(data),
                    sha256=sha256_of(data),
                )
            )

    def _id_once(self, request_id: str, start: Start) -> None:
        where = f"{start.file.name}: request_id"
        problem = ""
        if not is_safe_name(request_id):
            problem = "is not a safe name, with the number of a part at its end"
        elif request_id in self.request_ids:
            problem = "stands in an earlier file, too"
        self.request_ids.add(request_id)
        if problem:
            remedy = "give each batch an id of its own, or leave it out"
            raise ValidationFailed(f"{where} {problem}", errors=[FieldError(where, problem, remedy)], remedy=remedy)
