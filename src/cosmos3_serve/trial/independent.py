"""A second opinion on a publication: read it back with plain GETs and believe nothing that is not recomputed.

This shares no code with the client that published it, nor with the storage room or the contract: it lists the prefix,
reads the JSON, hashes and decodes every file. The quickstart runs it; so can anyone who doubts a publication.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import av
import obstore
from obstore.store import S3Store
from PIL import Image

from cosmos3_serve.errors import ContractViolation, IntegrityError

SCHEMA = "npa.cosmos3.ray-serve.provenance.v1"
OWN_FILES = {"request.json", "response.json", "provenance.json"}


def verify_publication(
    bucket: str, prefix: str, environ: Mapping[str, str], folder: Path, *, status: str = "completed"
) -> dict[str, Any]:
    """Check the publication below `s3://bucket/prefix` and copy it into `folder`.

    With `status` "recovered" there may be no response.json, and the engine's own records lie below `native/`.

    Returns `provenance` (the parsed record), `artifacts` (path, bytes, sha256, what decoding showed) and `files`.

    Raises:
        ContractViolation: something is missing, undeclared, or out of order.
        IntegrityError: bytes differ from what provenance declares, or do not decode to what the sample asked for.
    """
    prefix = prefix.strip("/") + "/"
    store = S3Store(
        bucket,
        endpoint=environ["AWS_ENDPOINT_URL"],
        access_key_id=environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=environ["AWS_SECRET_ACCESS_KEY"],
        region=environ.get("AWS_REGION", "us-east-1"),
        client_options={"allow_http": True},
    )
    listed = {
        str(meta["path"]).removeprefix(prefix): meta for page in obstore.list(store, prefix=prefix) for meta in page
    }
    # Who may publish there; it stays where the client may not delete.
    listed = {name: meta for name, meta in listed.items() if not name.startswith(".cosmos3-")}
    for name in listed:
        _fetch(store, prefix + name, folder / name)
    own = OWN_FILES - ({"response.json"} & (OWN_FILES - listed.keys()) if status == "recovered" else set())
    if not listed.keys() >= own:
        raise ContractViolation(f"not published: {sorted(own - listed.keys())}")
    newest = max(meta["last_modified"] for meta in listed.values())
    if listed["provenance.json"]["last_modified"] != newest:
        raise ContractViolation("provenance.json is older than a file that it vouches for")
    record = json.loads((folder / "provenance.json").read_bytes())
    if record.get("schema_version") != SCHEMA or record.get("status") != status:
        raise ContractViolation(f"provenance.json does not say that this publication is {status}")
    for name, field in (("request.json", "request_sha256"), ("response.json", "response_sha256")):
        if (_sha256(folder / name) if name in own else "") != record.get(field):
            raise IntegrityError(f"{name} differs from the hash in provenance.json")
    return {
        "provenance": record,
        "artifacts": _artifacts(folder, record, set(listed) - own - _natives(folder, record)),
        "files": sorted(listed),
    }


def _natives(folder: Path, record: Mapping[str, Any]) -> set[str]:
    """The engine's own records that a recovered publication was derived from, each with the bytes that it declares."""
    natives = (record.get("recovery") or {}).get("natives", [])
    named = {f"native/{item['path']}": item for item in natives if item["role"] != "artifact"}
    for name, item in named.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != item["bytes"] or _sha256(path) != item["sha256"]:
            raise IntegrityError(f"{name} differs from its declared size or hash")
    return set(named)


def _artifacts(folder: Path, record: Mapping[str, Any], published: set[str]) -> list[dict[str, Any]]:
    declared = {f"artifacts/{item['path']}": item for item in record["artifacts"]}
    if declared.keys() != published:
        raise ContractViolation(f"declared and published files differ: {sorted(declared.keys() ^ published)}")
    frames = {result["args"]["name"]: result["args"]["num_frames"] for result in record["structured_outputs"]}
    if frames.keys() != set(record["sample_names"]):
        raise ContractViolation("the results are not those of the requested samples")
    found = []
    for name, item in sorted(declared.items()):
        path = folder / name
        if path.stat().st_size != item["bytes"] or _sha256(path) != item["sha256"]:
            raise IntegrityError(f"{name} differs from its declared size or hash")
        seen = _decode(path)
        if path.name.startswith("vision.") and seen["frames"] != frames[item["sample"]]:
            raise IntegrityError(f"{name} holds {seen['frames']} frames, the sample says {frames[item['sample']]}")
        found.append({"path": item["path"], "bytes": item["bytes"], "sha256": item["sha256"], **seen})
    return found


def _fetch(store: S3Store, key: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for chunk in obstore.get(store, key).stream(min_chunk_size=1 << 20):
            file.write(chunk)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _decode(path: Path) -> dict[str, Any]:
    """Decode every frame of a media file; `frames` is 1 for an image."""
    if path.suffix == ".jpg":
        with Image.open(path) as image:
            image.load()
            return {"width": image.width, "height": image.height, "frames": 1}
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = sum(1 for _ in container.decode(stream))
        return {"width": stream.width, "height": stream.height, "frames": frames}
