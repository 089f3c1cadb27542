"""The second opinion catches what a lying or broken publisher would leave behind."""

import hashlib
import json
import time
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store
from support.publication import IMAGE, REQUEST, VIDEO, sample, write_publication, write_video

from cosmos3_serve.errors import ContractViolation, IntegrityError
from cosmos3_serve.trial.independent import verify_publication
from cosmos3_serve.trial.local_s3 import LocalS3

ARTIFACT = f"artifacts/{REQUEST}"


@pytest.fixture
def s3(s3_server: LocalS3) -> LocalS3:
    s3_server.create_bucket("pub")
    return s3_server


@pytest.fixture
def root(tmp_path) -> Path:
    write_publication(tmp_path / "pub", [sample("still", IMAGE), sample("clip", VIDEO)])
    return tmp_path / "pub"


def publish(s3: LocalS3, root: Path, prefix: str, last: str = "provenance.json") -> None:
    store = S3Store(
        "pub",
        endpoint=s3.endpoint,
        access_key_id="x",
        secret_access_key="y",
        region="us-east-1",
        client_options={"allow_http": True},
    )
    names = sorted((p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()), key=lambda n: n == last)
    for name in names:
        if name == last != "provenance.json":
            time.sleep(1.1)  # S3 tells time in seconds
        obstore.put(store, f"{prefix}/{name}", root / name)


def check(s3: LocalS3, root: Path, tmp_path: Path, **kwargs):
    prefix = tmp_path.name
    publish(s3, root, prefix, **kwargs)
    return verify_publication("pub", prefix, s3.environ, tmp_path / "copy")


def test_a_true_publication_passes_and_is_copied(s3, root, tmp_path) -> None:
    seen = check(s3, root, tmp_path)
    assert [(a["path"].rpartition("/")[2], a["frames"]) for a in seen["artifacts"]] == [
        ("vision.mp4", 9),
        ("vision.jpg", 1),
    ]
    for path in root.rglob("*.*"):
        assert (tmp_path / "copy" / path.relative_to(root)).read_bytes() == path.read_bytes()


def lose(name: str):
    return lambda root: (root / name).unlink()


def flip(name: str):
    def act(root: Path) -> None:
        data = bytearray((root / name).read_bytes())
        data[len(data) // 2] ^= 1
        (root / name).write_bytes(bytes(data))

    return act


def edit(**changes):
    def act(root: Path) -> None:
        record = json.loads((root / "provenance.json").read_text())
        (root / "provenance.json").write_text(json.dumps(record | changes))

    return act


def extra(root: Path) -> None:
    (root / ARTIFACT / "still" / "debug.txt").write_text("undeclared")


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lose("response.json"), ContractViolation),
        (lose("provenance.json"), ContractViolation),
        (lose(f"{ARTIFACT}/still/vision.jpg"), ContractViolation),
        (extra, ContractViolation),
        (edit(status="partial"), ContractViolation),
        (edit(schema_version="v2"), ContractViolation),
        (edit(sample_names=["still", "other"]), ContractViolation),
        (flip("request.json"), IntegrityError),
        (flip("response.json"), IntegrityError),
        (flip(f"{ARTIFACT}/still/vision.jpg"), IntegrityError),
        (flip(f"{ARTIFACT}/clip/vision.mp4"), IntegrityError),
    ],
)
def test_damage_is_caught(s3, root, tmp_path, damage, error) -> None:
    damage(root)
    with pytest.raises(error):
        check(s3, root, tmp_path)


def test_a_video_of_another_length_than_asked_is_caught(s3, tmp_path) -> None:
    short = sample("clip", VIDEO)
    root = tmp_path / "pub"
    write_publication(root, [short])
    write_video(root / ARTIFACT / "clip" / "vision.mp4", 5)
    data = (root / ARTIFACT / "clip" / "vision.mp4").read_bytes()
    record = json.loads((root / "provenance.json").read_text())
    record["artifacts"][0] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    edit(artifacts=record["artifacts"])(root)
    with pytest.raises(IntegrityError, match="5 frames"):
        check(s3, root, tmp_path)


def test_provenance_before_its_files_is_caught(s3, root, tmp_path) -> None:
    with pytest.raises(ContractViolation, match="older"):
        check(s3, root, tmp_path, last=f"{ARTIFACT}/still/vision.jpg")


def recovered(root: Path, **changes) -> None:
    """The same publication as a recovered one without a response, derived from one native record."""
    native = root / "native" / REQUEST / "still" / "sample_args.json"
    native.parent.mkdir(parents=True)
    native.write_text("{}")
    (root / "response.json").unlink()
    path = f"{REQUEST}/still/sample_args.json"
    digest = hashlib.sha256(b"{}").hexdigest()
    natives = [{"sample": "still", "path": path, "role": "args", "bytes": 2, "sha256": digest} | changes]
    record = json.loads((root / "provenance.json").read_bytes())
    record |= {"status": "recovered", "response_sha256": "", "recovery": {"natives": natives}}
    (root / "provenance.json").write_text(json.dumps(record))


def test_a_recovered_publication_is_checked_with_what_it_was_derived_from(s3, root, tmp_path) -> None:
    recovered(root)
    publish(s3, root, "recovered")
    seen = verify_publication("pub", "recovered", s3.environ, tmp_path / "copy", status="recovered")
    assert len(seen["artifacts"]) == 2
    with pytest.raises(ContractViolation):
        verify_publication("pub", "recovered", s3.environ, tmp_path / "copy")


def test_a_changed_native_record_is_caught(s3, root, tmp_path) -> None:
    recovered(root, sha256="0" * 64)
    publish(s3, root, "changed")
    with pytest.raises(IntegrityError, match="sample_args"):
        verify_publication("pub", "changed", s3.environ, tmp_path / "copy", status="recovered")
