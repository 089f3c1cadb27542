"""Who may publish at a place: a short append-only log below `.cosmos3-claims/`, agreed on by conditional PUTs alone.

    0001.json  claimed     by a batch, before anything is sent to a service
    0002.json  publishing  one outcome of that batch, before its first object is written
               released    instead: the batch will not be published here, so the next one may claim

Every entry is created only if its number is free, so all clients of all machines see one history. A batch that is
publishing stays the only one for ever: two clients of the same batch may both upload, because one outcome means the
same bytes, and a client with another outcome writes nothing. Whoever appends an entry then looks for provenance.json;
only because of that may the log be removed once provenance.json is there.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from enum import StrEnum
from typing import Literal, TypeGuard

from pydantic import BaseModel, ConfigDict, ValidationError

from cosmos3_serve.errors import Conflict, StorageAuthorizationError, StorageFailure
from cosmos3_serve.publication.layout import CLAIMS, PROVENANCE, REQUEST
from cosmos3_serve.publication.verify import read_bytes, read_json
from cosmos3_serve.storage.location import Location

MAX_ENTRIES = 1000


class State(StrEnum):
    CLAIMED = "claimed"
    PUBLISHING = "publishing"
    RELEASED = "released"


class Entry(BaseModel):
    """One entry. `request_sha256` is of the POST's body, which `body` holds in the entry that claims; `outcome` names
    what a batch publishes (see `Publication.begin`)."""

    model_config = ConfigDict(extra="ignore")

    version: Literal[1] = 1
    state: State
    request_id: str
    request_sha256: str
    outcome: str = ""
    body: str | None = None


class Found(StrEnum):
    """What is at the location."""

    FREE = "free"
    OURS = "ours"  # claimed by this batch, not complete
    COMPLETE = "complete"  # published by this batch


class Sealed(Exception):
    """The place holds a provenance.json of this batch."""


class Contested(Exception):
    """Another client of this batch is publishing another outcome of it."""


class Claims:
    """The log of one place on behalf of one batch.

    Every method raises:
        Conflict: code `publication_exists`: the place belongs to another batch.
        StorageFailure: storage would not, after retries.
    """

    def __init__(self, place: Location, request: bytes, request_id: str) -> None:
        self._place, self._request, self._id = place, request, request_id
        self._sha256 = hashlib.sha256(request).hexdigest()
        self._claimed = 0  # number of the entry that claims, while it was the last one seen

    async def look(self) -> Found:
        """Who holds the place; changes nothing."""
        if await self.sealed():
            return Found.COMPLETE
        _, last = await self._last()
        if _held(last):
            self._require_ours(last)
            return Found.OURS
        return await self._by_request()

    async def claim(self) -> None:
        """Make this batch the owner of a free place; nothing where it is already.

        Raises:
            Sealed: it was published meanwhile.
        """
        while True:
            number, last = await self._last()
            if _held(last):
                self._require_ours(last)
                self._claimed = number if last.state is State.CLAIMED else 0
                return
            await self._by_request()
            if await self._append(number + 1, State.CLAIMED):
                self._claimed = number + 1
                return

    async def begin(self, outcome: str) -> None:
        """Fix what this batch publishes here.

        Raises:
            Contested: another outcome is being published.
            Sealed: it was published meanwhile.
        """
        claimed, self._claimed = self._claimed, 0
        if claimed and await self._append(claimed + 1, State.PUBLISHING, outcome):  # else there is more to read
            return
        while True:
            number, last = await self._last()
            if not _held(last):
                await self.claim()
                continue
            self._require_ours(last)
            if last.state is State.PUBLISHING:
                # Looked for after the entry was read: a late client may have written it once the place was sealed.
                if await self.sealed():
                    raise Sealed
                if last.outcome != outcome:
                    raise Contested
                return
            if await self._append(number + 1, State.PUBLISHING, outcome):
                return

    async def release(self) -> bool:
        """Give a claim of this batch back; False where it has none, or already began to publish."""
        while True:
            number, last = await self._last()
            if last is None or last.state is not State.CLAIMED or not self._ours(last):
                return False
            if await self._append(number + 1, State.RELEASED):
                return True

    async def forget(self) -> None:
        """Remove the log of a place whose provenance.json is there. It stays where deleting is not allowed.

        The last entry goes first, so that what a kill leaves is still a log.
        """
        with suppress(StorageFailure, StorageAuthorizationError):
            number, _ = await self._last()
            for entry in range(number, 0, -1):
                await self._place.store.delete(self._key(entry))

    async def sealed(self) -> bool:
        """Whether this batch is published here."""
        manifest = await read_json(self._place, PROVENANCE)
        if manifest is None:
            return False
        if manifest.get("request_id") != self._id:
            raise self.taken(f"{PROVENANCE} names {_shown(manifest.get('request_id'))}")
        return True

    async def _by_request(self) -> Found:
        """Older clients claimed a place by its request.json."""
        request = await read_bytes(self._place, REQUEST)
        if request is None:
            return Found.FREE
        if request != self._request:
            raise self.taken(f"its {REQUEST} is another one")
        return Found.OURS

    async def _append(self, number: int, state: State, outcome: str = "") -> bool:
        """Whether the entry is ours; the place's provenance.json is looked for after it."""
        if number > MAX_ENTRIES:
            raise self.taken(f"{MAX_ENTRIES} entries lie below {CLAIMS}/")
        entry = Entry(state=state, request_id=self._id, request_sha256=self._sha256, outcome=outcome)
        if state is State.CLAIMED:
            with suppress(UnicodeDecodeError):
                entry.body = self._request.decode()
        data = entry.model_dump_json(indent=1, exclude_none=True).encode()
        try:
            await self._place.store.put_bytes(self._key(number), data, create=True)
        except Conflict:
            # Ours if it holds our bytes: an answer was lost, or another client of this batch wrote the same.
            if await read_bytes(self._place, _name(number)) != data:
                return False
        if state is State.RELEASED:
            return True
        try:
            complete = await self.sealed()
        except Conflict:
            with suppress(StorageFailure):
                await self._place.store.delete(self._key(number))
            raise
        if complete:
            with suppress(StorageFailure):  # nobody reads an entry behind a log that was removed
                await self._place.store.delete(self._key(number))
            raise Sealed
        return True

    async def _last(self) -> tuple[int, Entry | None]:
        entries = await read_log(self._place)
        return len(entries), entries[-1] if entries else None

    def _require_ours(self, entry: Entry) -> None:
        if not self._ours(entry):
            said = "claimed by" if entry.state is State.CLAIMED else "being published by"
            raise self.taken(f"{said} request {_shown(entry.request_id)}")

    def _ours(self, entry: Entry) -> bool:
        return (entry.request_id, entry.request_sha256) == (self._id, self._sha256)

    def _key(self, number: int) -> str:
        return self._place.key(_name(number))

    def taken(self, why: str) -> Conflict:
        return Conflict(
            f"the output location belongs to another batch: {why}",
            remedy="choose another --output-path, or finish that batch with --resume; nothing is ever overwritten",
            code="publication_exists",
        )


async def read_log(place: Location) -> list[Entry]:
    """The entries in order; empty where there is none.

    Raises:
        StorageFailure: code `claims_damaged`: an entry is none of ours.
    """
    found: list[Entry] = []
    while (data := await read_bytes(place, _name(len(found) + 1))) is not None:
        try:
            found.append(Entry.model_validate_json(data))
        except ValidationError:
            raise StorageFailure(
                f"{_name(len(found) + 1)} at the output location is damaged, so nobody can tell whose the place is",
                remedy="choose another --output-path, or remove that folder if no client works on the place",
                code="claims_damaged",
            ) from None
    return found


async def claimed_body(place: Location) -> bytes | None:
    """The body of the POST whose batch holds the place; None where none does, or an older client claimed it."""
    entries = await read_log(place)
    if not _held(entries[-1] if entries else None):
        return None
    owner = entries[-1].request_sha256
    bodies = [entry.body for entry in entries if entry.request_sha256 == owner and entry.body is not None]
    return bodies[-1].encode() if bodies else None


def _held(entry: Entry | None) -> TypeGuard[Entry]:
    return entry is not None and entry.state is not State.RELEASED


def _name(number: int) -> str:
    return f"{CLAIMS}/{number:04}.json"


def _shown(request_id: object) -> str:
    return "".join(c if c.isprintable() else " " for c in str(request_id)[:128])
