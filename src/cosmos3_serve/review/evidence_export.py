"""`evidence export`: a publication as a record that may be shared."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import socket
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cosmos3_serve.errors import InputError, NotFound, Refusal, UsageError
from cosmos3_serve.review.denyscan import HASHES, leaks, texts_in, values_of, vocabulary, with_parts
from cosmos3_serve.review.evidence import CODES, Evidence, evidence_of
from cosmos3_serve.review.publication import Publication, read_publication

MAX_RECORD_BYTES = 512 * 1024 * 1024
MAX_SYSTEM_BYTES = 4 * 1024 * 1024
# Under these keys a publication says, in a form that the schema takes, what the record repeats.
REPEATED = frozenset(
    {"framework_revision", "expected_revision", "server_source_revision", "client_version", "revision", "digest"}
    | {"sha256", "request_sha256", "response_sha256", "record_sha256"}
)


def export_evidence(
    location: str,
    output: Path,
    *,
    system_info: Path | None = None,
    deny: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Evidence:
    """Write the shareable record of the publication at `location` to `output`.

    Args:
        system_info: a saved answer of `GET /system-info`, for GPU family and count.
        deny: names besides those of the publication and this environment that must not appear.

    Raises:
        IntegrityError: code `publication_damaged`: only a verified publication is evidence.
        Refusal: code `evidence_leak`: a name would have come out; nothing was written.
        UsageError: the saved `/system-info` cannot be read.
    """
    environ = os.environ if environ is None else environ
    return asyncio.run(_export(location, output, system_info, tuple(deny), environ))


async def _export(
    location: str, output: Path, system_info: Path | None, deny: tuple[str, ...], environ: Mapping[str, str]
) -> Evidence:
    system = _system(system_info) if system_info else {}
    with tempfile.TemporaryDirectory(prefix="cosmos3-evidence-") as folder:
        publication = await (await read_publication(location, Path(folder), environ)).verify()
        try:
            evidence = await asyncio.to_thread(evidence_of, publication.provenance, publication.digest, system)
        except ValidationError as error:
            where = ".".join(map(str, error.errors(include_input=False)[0]["loc"]))
            raise InputError(
                f"provenance.json holds a number that no record can: {where}", code="invalid_publication"
            ) from None
        text = json.dumps(evidence.model_dump(mode="json"), indent=2, sort_keys=True, allow_nan=False) + "\n"
        records = [record async for record in _records(publication, Path(folder))]
    await asyncio.to_thread(check, text, [*records, system], [*deny, location, *_surroundings(environ)])
    await asyncio.to_thread(_write, output, text)
    return evidence


def check(text: str, records: Iterable[Any], names: Iterable[str]) -> None:
    """Refuse a finished record that holds any name of its sources.

    Args:
        records: decoded JSON: the publication's own records.
        names: further texts that must not appear.

    Raises:
        Refusal: code `evidence_leak`; it says what kind of thing, never the name.
    """
    values = set(values_of(text))
    said = {
        part for record in records for under, part in texts_in(record) if not (under in REPEATED and part in values)
    }
    known = with_parts([*said, *names]) - {value.removeprefix("sha256:") for value in values if HASHES.fullmatch(value)}
    if found := leaks(text, vocabulary(Evidence) | CODES | {"other"}, known):
        raise Refusal(
            f"the record would hold what must not be shared: {', '.join(found)}; nothing was written",
            remedy="report this as a fault of the allow-list; share nothing made by hand instead",
            code="evidence_leak",
        )


async def _records(publication: Publication, folder: Path) -> Any:
    """The publication's JSON records, one after the other."""
    for name in ("provenance.json", "request.json", "response.json"):
        path = folder / f"scan-{name}"
        try:
            await publication.place.store.download(publication.place.key(name), path, max_bytes=MAX_RECORD_BYTES)
        except NotFound:
            continue  # a recovered publication may have no response
        with suppress(ValueError, RecursionError):
            yield await asyncio.to_thread(json.loads, path.read_bytes())


def _surroundings(environ: Mapping[str, str]) -> list[str]:
    """What is known of this machine and its user."""
    names = [value for value in environ.values() if len(value) < 4096]
    names += [socket.gethostname(), socket.getfqdn()]
    with suppress(OSError, KeyError, RuntimeError):
        names += [getpass.getuser(), str(Path.home())]
    return names


def _system(file: Path) -> dict[str, Any]:
    remedy = "save it with: curl -H 'Authorization: Bearer …' http://the-host:8000/system-info > system-info.json"
    try:
        if file.stat().st_size > MAX_SYSTEM_BYTES:
            raise UsageError(f"the saved /system-info is larger than {MAX_SYSTEM_BYTES} bytes", remedy=remedy)
        found = json.loads(file.read_bytes())
    except OSError as error:
        raise UsageError(f"the saved /system-info cannot be read: {error.strerror}", remedy=remedy) from None
    except (ValueError, RecursionError):
        raise UsageError("the saved /system-info is not JSON", remedy=remedy) from None
    if not isinstance(found, dict):
        raise UsageError("the saved /system-info is not a JSON object", remedy=remedy)
    return found


def _write(output: Path, text: str) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_name(f".{output.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(output)
