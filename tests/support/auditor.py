"""An auditor of publications that shares no code with the client: it reads objects, and what the service itself made.

    auditor = Auditor(Folder(out), service_root, {"batch-1": samples})
    auditor.look("after the kill", states={"batch-1": {"a": "succeeded"}}, acks=[manifest])
    assert not auditor.faults

Checked at every look, whoever was killed in between:

- without provenance.json nobody was told that the batch is done (`acknowledged_but_absent`);
- with it, every sample is there that it calls done, with the bytes that the service made, decodable, nothing twice and
  nothing foreign; `completed` means every sample that was submitted, and none that the service calls failed;
- who was told that the batch is done was told what is stored;
- an object of a publication never changes: not between two looks, and in a bucket not in its history of versions.

Only the standard library, boto3's client, PIL and PyAV.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

BOOKKEEPING = (".cosmos3-claims/", ".cosmos3-probes/")
RECORDS = ("request.json", "response.json", "provenance.json")
PRIMARY = {".jpg": "JPEG", ".mp4": "", ".txt": ""}


class Place(Protocol):
    """Where publications lie."""

    def objects(self) -> dict[str, bytes]:
        """Name below the place to bytes."""
        ...

    def versions(self) -> dict[str, list[str]]:
        """Name to the SHA-256 of everything that ever was stored under it, where that is known."""
        ...


@dataclass
class Folder:
    """A local folder; unfinished hidden parts are no objects."""

    root: Path

    def objects(self) -> dict[str, bytes]:
        files = [path for path in self.root.rglob("*") if path.is_file() and not path.name.endswith(".part")]
        return {path.relative_to(self.root).as_posix(): path.read_bytes() for path in files}

    def versions(self) -> dict[str, list[str]]:
        return {}


@dataclass
class Bucket:
    """A prefix of a bucket that keeps versions, read with boto3."""

    client: Any
    bucket: str
    prefix: str

    def objects(self) -> dict[str, bytes]:
        found = {}
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix):
            for item in page.get("Contents", []):
                name = item["Key"].removeprefix(self.prefix)
                try:
                    found[name] = self.client.get_object(Bucket=self.bucket, Key=item["Key"])["Body"].read()
                except self.client.exceptions.NoSuchKey:
                    # The last request of a client that was killed may still be carried out: it may remove a claim or
                    # a probe, and nothing else.
                    if not name.startswith(BOOKKEEPING):
                        raise
        return found

    def versions(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for page in self.client.get_paginator("list_object_versions").paginate(Bucket=self.bucket, Prefix=self.prefix):
            for item in page.get("Versions", []):
                body = self.client.get_object(Bucket=self.bucket, Key=item["Key"], VersionId=item["VersionId"])["Body"]
                found.setdefault(item["Key"].removeprefix(self.prefix), []).append(sha256(body.read()))
        return found


@dataclass
class Auditor:
    """Looks at one place. `submitted` are the samples of every batch that any client was asked to publish there."""

    place: Place
    service_root: Path
    submitted: Mapping[str, list[dict[str, Any]]]
    faults: list[str] = field(default_factory=list)
    _sealed: dict[str, str] = field(default_factory=dict)

    def look(
        self,
        when: str,
        *,
        states: Mapping[str, Mapping[str, str]],
        acks: Iterable[Mapping[str, Any]] = (),
        partial_allowed: bool = True,
        over: bool = False,
    ) -> dict[str, Any] | None:
        """Look once; returns the stored manifest, if any.

        Args:
            states: by request id, what the service says of each sample.
            acks: manifests that clients returned so far.
            partial_allowed: whether any client was asked for a partial publication.
            over: nobody works here any more, so claims must be gone.
        """
        objects = self.place.objects()
        found = self._look(objects, states, list(acks), partial_allowed)
        if over and "provenance.json" in objects:
            found += [f"left_behind: {name}" for name in objects if name.startswith(BOOKKEEPING[0])]
        self.faults += [f"{when}: {fault}" for fault in found]
        try:
            return json.loads(objects["provenance.json"])  # type: ignore[no-any-return]
        except (KeyError, ValueError):
            return None

    def _look(
        self,
        objects: dict[str, bytes],
        states: Mapping[str, Mapping[str, str]],
        acks: list[Mapping[str, Any]],
        partial_allowed: bool,
    ) -> list[str]:
        faults = [f"changed: {name}" for name, digest in self._sealed.items() if _digest(objects, name) != digest]
        for name, digests in self.place.versions().items():
            if name.startswith(BOOKKEEPING):
                continue
            if len(set(digests)) > 1 or (name == "provenance.json" and len(digests) > 1):
                faults.append(f"overwritten: {name} was stored {len(digests)} times")
        if "provenance.json" not in objects:
            return faults + [f"acknowledged_but_absent: {ack.get('status')}" for ack in acks]
        try:
            manifest = json.loads(objects["provenance.json"])
            request_id, names = manifest["request_id"], manifest["sample_names"]
        except (ValueError, KeyError, TypeError) as error:
            return [*faults, f"unreadable: provenance.json ({error!r})"]
        faults += [
            f"told_otherwise: a client was told {ack.get('status')} of {ack.get('request_id')}"
            for ack in acks
            if ack != manifest
        ]
        if request_id not in self.submitted:
            return [*faults, f"foreign_batch: {request_id}"]
        samples = self.submitted[request_id]
        faults += self._records(objects, manifest, samples)
        faults += _coverage(manifest, samples, dict(states.get(request_id, {})), partial_allowed)
        faults += self._artifacts(objects, manifest, set(names))
        if not faults:
            self._sealed = {n: sha256(data) for n, data in objects.items() if not n.startswith(BOOKKEEPING)}
        return faults

    def _records(self, objects: dict[str, bytes], manifest: dict[str, Any], samples: list[dict[str, Any]]) -> list[str]:
        faults = []
        for record in ("request", "response"):
            if _digest(objects, f"{record}.json") != manifest.get(f"{record}_sha256"):
                faults.append(f"record_differs: {record}.json")
        if faults:
            return faults
        request, response = json.loads(objects["request.json"]), json.loads(objects["response.json"])
        if request["request_id"] != manifest["request_id"] or response["request_id"] != manifest["request_id"]:
            faults.append("record_differs: request ids")
        posted = [{key: value for key, value in one.items() if value is not None} for one in request["samples"]]
        if any(given.items() - sent.items() for given, sent in zip(samples, posted, strict=False)):
            faults.append("record_differs: request.json is not what was submitted")
        return faults

    def _artifacts(self, objects: dict[str, bytes], manifest: dict[str, Any], names: set[str]) -> list[str]:
        faults: list[str] = []
        if faults_of_list := _twice(manifest):
            return faults_of_list
        response = json.loads(objects.get("response.json", b"{}"))
        missing = set(manifest["missing"])
        declared = {item["path"] for item in response.get("artifacts", []) if item["sample"] not in missing}
        listed = {item["path"]: item for item in manifest["artifacts"]}
        faults += [f"left_out: {path}" for path in sorted(declared - set(listed))]
        for path, item in listed.items():
            data = objects.get(f"artifacts/{path}")
            made = self.service_root / path
            if item["sample"] not in names - missing:
                faults.append(f"unacknowledged_sample: {path}")
            if data is None:
                faults.append(f"missing: {path}")
            elif (len(data), sha256(data)) != (item["bytes"], item["sha256"]):
                faults.append(f"altered: {path}")
            elif not made.is_file() or sha256(made.read_bytes()) != sha256(data):
                faults.append(f"not_what_the_service_made: {path}")
            elif why := undecodable(path, data):
                faults.append(f"undecodable: {path}: {why}")
        known = {f"artifacts/{path}" for path in listed} | set(RECORDS)
        foreign = [name for name in objects if name not in known and not name.startswith(BOOKKEEPING)]
        return faults + [f"foreign_object: {name}" for name in foreign]


def generated_twice(generated: Mapping[str, int], interruptions: Mapping[str, int]) -> list[str]:
    """Samples (`request/sample`) that the service had to make more often than it broke off itself."""
    return [
        f"generated_twice: {name}, {times} times"
        for name, times in generated.items()
        if times > 1 + interruptions.get(name, 0)
    ]


def _coverage(
    manifest: dict[str, Any], samples: list[dict[str, Any]], states: dict[str, str], partial_allowed: bool
) -> list[str]:
    names, missing = [one["name"] for one in samples], set(manifest["missing"])
    faults = []
    if manifest["sample_names"] != names:
        faults.append(f"coverage: names {manifest['sample_names']}, submitted {names}")
    if (manifest["status"] == "completed") != (not missing) or manifest["status"] not in ("completed", "partial"):
        faults.append(f"coverage: status {manifest['status']} with {len(missing)} missing")
    if manifest["status"] == "partial" and not partial_allowed:
        faults.append("coverage: partial, though nobody asked for it")
    having = {item["sample"] for item in manifest["artifacts"] if Path(item["path"]).suffix in PRIMARY}
    for name in names:
        if (name in having) == (name in missing):
            faults.append(f"coverage: {name} is {'both there and' if name in having else 'neither there nor'} missing")
        if name not in missing and states.get(name) != "succeeded":
            faults.append(f"called_complete: {name}, of which the service says {states.get(name)}")
    return faults


def _twice(manifest: dict[str, Any]) -> list[str]:
    paths = Counter(item["path"] for item in manifest["artifacts"])
    names = Counter(manifest["sample_names"])
    return [f"listed_twice: {one}" for one, times in [*paths.items(), *names.items()] if times > 1]


def undecodable(path: str, data: bytes) -> str:
    """Why the bytes are not the media that the name says; empty where they are."""
    suffix = Path(path).suffix
    try:
        if suffix == ".jpg":
            from PIL import Image

            with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
                image.load()
        elif suffix == ".mp4":
            import av

            with av.open(io.BytesIO(data), format="mp4") as container:
                if not any(True for _ in container.decode(video=0)):
                    return "no frame"
        elif suffix == ".txt":
            data.decode()
    except Exception as error:
        return repr(error)
    return ""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest(objects: Mapping[str, bytes], name: str) -> str | None:
    return sha256(objects[name]) if name in objects else None
