"""The audit of every publication below a prefix: many at once, continued from the report of an interrupted run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cosmos3_serve.errors import InputError, ServiceFailure, StorageFailure, UsageError
from cosmos3_serve.publication.audit import Audit, Outcome, audit
from cosmos3_serve.publication.decode import Decoder
from cosmos3_serve.publication.layout import (
    ARTIFACTS,
    CLAIMS,
    INDEX,
    INDEX_SCHEMA,
    NATIVE,
    PARTS,
    PROVENANCE,
    REQUEST,
)
from cosmos3_serve.publication.pool import each
from cosmos3_serve.publication.verify import Fault, read_json
from cosmos3_serve.storage.files import in_thread
from cosmos3_serve.storage.location import Location

JOBS = 8
READS = 2
HEADER = "cosmos3.audit.v2"

Told = Callable[[str, int, int], None]


@dataclass(slots=True)
class Audits:
    """All results; `unread` are places that storage would not show, with its reason. `known` came from the report."""

    prefix: str
    audits: list[Audit] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    known: int = 0

    def counts(self) -> dict[str, int]:
        return {str(outcome): sum(a.outcome is outcome for a in self.audits) for outcome in Outcome}

    def as_dict(self) -> dict[str, Any]:
        """Totals, and in full only what is not intact: thousands of intact ones are in the report."""
        return {
            "prefix": self.prefix,
            "audited": len(self.audits),
            "from_report": self.known,
            **{key: value for key, value in self.counts().items() if key != Outcome.ABSENT},
            "unread": self.unread,
            "bytes": sum(a.bytes for a in self.audits),
            "findings": [a.as_dict() for a in self.audits if a.outcome is not Outcome.INTACT],
        }


async def places_below(root: Location) -> list[str]:
    """Prefixes below `root` (relative, "" for itself) that hold a publication or the beginning of one, sorted.

    Raises:
        StorageFailure: the prefix cannot be listed.
    """
    start = len(root.key("")) if root.prefix else 0
    found: set[str] = set()
    async for info in root.store.list(root.prefix):
        folder, _, name = info.key[start:].rpartition("/")
        if name in (PROVENANCE, REQUEST):
            found.add(folder)
        elif folder.rpartition("/")[2] == CLAIMS:
            found.add(folder.rpartition("/")[0])
    return [place for place in sorted(found) if not _inside(place, found)]


def _inside(place: str, places: set[str]) -> bool:
    """Whether it is a sample's folder of another publication, whose files may have any name."""
    parts = place.split("/") if place else []
    return any("/".join(parts[:number]) in places for number, part in enumerate(parts) if part in (ARTIFACTS, NATIVE))


async def audit_all(
    root: Location, report: Path | None = None, *, jobs: int = JOBS, told: Told | None = None
) -> Audits:
    """Audit every publication below `root`.

    Args:
        report: JSON Lines file that gets each result as soon as it is known; places that are in it already are not read
            again, so an interrupted audit continues. Another file begins anew.
        jobs: publications at once.
        told: called with the place, how many are done, and how many there are.

    Raises:
        UsageError: code `invalid_report`: the report is of another prefix, or no report.
        StorageFailure: the prefix cannot be listed.
    """
    found = Audits(str(root))
    known = await in_thread(read_report, report, str(root)) if report is not None else {}
    places = await places_below(root)
    if report is not None:
        await in_thread(_append, report, None if report.exists() else {"schema": HEADER, "prefix": str(root)})
    done = 0
    async with Decoder() as decoder:

        async def one(relative: str) -> None:
            nonlocal done
            text = f"{str(root).rstrip('/')}/{relative}/" if relative else str(root)
            place = Location(root.store, root.key(relative) if relative else root.prefix, text)
            try:
                result = known.get(str(place))
                if result is not None:
                    found.known += 1
                else:
                    result = await audit(place, decoder, reads=READS)
                    if report is not None:
                        await in_thread(_append, report, result.as_dict())
                found.audits.append(result)
            except (ServiceFailure, InputError) as error:
                found.unread[str(place)] = error.detail
            done += 1
            if told is not None:
                told(str(place), done, len(places))

        await each(places, max(1, min(jobs, len(places))), one)
    found.audits += await _against_index(root, found)
    found.audits.sort(key=lambda result: result.place)
    return found


async def _against_index(root: Location, found: Audits) -> list[Audit]:
    """Compare with the index of a queue, if one lies at `root`; returns parts that it names and that are missing."""
    index = await read_json(root, INDEX)
    if index is None or index.get("schema_version") != INDEX_SCHEMA:
        return []
    here = {result.place: result for result in found.audits}
    lost = []
    parts = index.get("parts")
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, dict) or not isinstance(digest := part.get("manifest_sha256"), str):
            continue
        place = f"{str(root).rstrip('/')}/{PARTS}/{part.get('name')}"
        result = here.get(place) or here.get(f"{place}/")
        if result is None:
            if not {place, f"{place}/"} & found.unread.keys():
                result = Audit(place, Outcome.FAULTY)
                result.fault(PROVENANCE, "missing", f"is missing, and {INDEX} names it")
                lost.append(result)
        elif result.record_sha256 != digest:
            result.fault(PROVENANCE, "index_differs", f"is not the one that {INDEX} names")
            result.outcome = Outcome.FAULTY
    return lost


def read_report(path: Path, prefix: str) -> dict[str, Audit]:
    """Results by place; a torn last line is left out. Blocking.

    Raises:
        UsageError: code `invalid_report`.
    """
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    header: Mapping[str, Any] = {}
    with suppress(ValueError, IndexError):
        header = json.loads(lines[0])
    if not isinstance(header, dict) or (header.get("schema"), header.get("prefix")) != (HEADER, prefix):
        raise UsageError(
            f"{path} is no report of an audit of {prefix}",
            remedy="name another --report; each prefix has one of its own",
            code="invalid_report",
        )
    found: dict[str, Audit] = {}
    for line in lines[1:]:
        with suppress(ValueError, TypeError, KeyError):
            fields = json.loads(line)
            faults = [Fault(**fault) for fault in fields["faults"]]
            made = Audit(**{**fields, "outcome": Outcome(fields["outcome"]), "faults": faults})
            found[made.place] = made
    return found


def _append(path: Path, line: Mapping[str, Any] | None) -> None:
    """Raises StorageFailure: the report cannot be written."""
    try:
        with path.open("a", encoding="utf-8") as out:
            if line is not None:
                out.write(json.dumps(line) + "\n")
            elif out.tell():
                out.write("\n")  # ends a line that a kill may have torn
    except OSError as error:
        raise StorageFailure(f"cannot write the report {path}: {error.strerror}", code="storage_failed") from None
