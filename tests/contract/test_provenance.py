import json
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from cosmos3_serve.contract.batch import CheckpointRecord, EngineRecord
from cosmos3_serve.contract.provenance import MediaProof, Plan, Provenance
from cosmos3_serve.contract.records import Artifact, SampleRecord, SampleState, SampleWave
from cosmos3_serve.contract.recovery import FirstAttempt, NativeFile, Recovery

PLAN = {
    "endpoint": "http://h",
    "input_path": "/in.json",
    "output_path": "s3://b/o",
    "model": "Cosmos3-Nano",
    "sample_names": ["a"],
    "batch_size": 1,
}
DONE = {
    **PLAN,
    "status": "completed",
    "backend": "diffusers-ray-serve",
    "request_id": "r",
    "guardrails": True,
    "max_batch_size": 4,
    "framework_revision": "diffusers-1",
    "server_source_revision": "0" * 40,
    "artifacts": [],
    "structured_outputs": [],
    "published_uri": "s3://b/o/",
    "provenance_uri": "s3://b/o/provenance.json",
}


def test_the_plan_is_exactly_the_baselines():
    assert Plan(**PLAN).model_dump() == {
        **PLAN,
        "schema_version": "npa.cosmos3.ray-serve.provenance.v1",
        "status": "planned",
        "run_id": "",
        "backend": "cosmos-framework-native-ray-serve",
        "weights_baked": False,
    }


def test_provenance_holds_the_plan_and_the_baselines_additions():
    body = Provenance(**DONE).model_dump(mode="json")
    assert set(Plan.model_fields) | set(DONE) | {"runtime_image"} <= set(body)
    assert body["status"] == "completed"


def test_bytes_are_sorted_indented_and_end_in_a_newline():
    data = Provenance(**DONE).to_bytes()
    assert data.endswith(b"}\n")
    assert data == (json.dumps(json.loads(data), indent=2, sort_keys=True) + "\n").encode()


@pytest.mark.parametrize("bad", [{"status": "failed"}, {"phases": {"x": float("inf")}}, {"weights_baked": True},
                                 {"structured_outputs": [{"action": [float("nan")]}]}])  # fmt: skip
def test_refused(bad):
    with pytest.raises(ValidationError):
        Provenance(**{**DONE, **bad})


TEXT = st.text(max_size=12)
LETTERS = string.ascii_letters + string.digits
NAME = st.builds(str.__add__, st.sampled_from(LETTERS), st.text(f"{LETTERS}._-", max_size=12))
SHA256 = st.binary(min_size=32, max_size=32).map(bytes.hex)
COUNT = st.integers(0, 10**6)
SECONDS = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
OBJECT = st.dictionaries(
    TEXT,
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63) | SECONDS | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)
RECORDS = {
    "artifacts": st.builds(Artifact, path=NAME.map("r/s/{}".format), bytes=st.integers(1, 2**40), sha256=SHA256),
    "media": st.builds(MediaProof, kind=st.sampled_from(["image", "video", "text"])),
    "natives": st.builds(NativeFile, bytes=st.integers(1, 2**40), sha256=SHA256),
    "samples": st.builds(
        SampleRecord,
        name=NAME,
        state=st.sampled_from(SampleState),
        message=st.none() | TEXT,
        seed=st.none() | st.integers(0, 2**32 - 1),
        guardrails=OBJECT,
        timings=st.dictionaries(NAME, SECONDS, max_size=3),
        wave=st.none() | st.builds(SampleWave, coalesced=COUNT, inference_batch=COUNT, slot=COUNT),
    ),
}


def some(record):
    return st.lists(RECORDS[record], max_size=2)


RECOVERY = st.builds(
    Recovery,
    natives=some("natives"),
    first_attempt=st.none()
    | st.builds(
        FirstAttempt, created_at=SECONDS, submitted_at=st.none() | SECONDS, ended_at=st.none() | SECONDS,
        response_sha256=st.none() | SHA256, record_sha256=SHA256,
    ),
)  # fmt: skip


@st.composite
def provenances(draw):
    status = draw(st.sampled_from(["completed", "partial", "recovered"]))
    said = {"backend": TEXT, "guardrails": st.booleans(), "max_batch_size": st.integers(1, 256),
            "framework_revision": TEXT, "server_source_revision": TEXT}  # fmt: skip
    if status == "recovered":
        said = {name: st.none() | values for name, values in said.items()}
    return draw(
        st.builds(
            Provenance,
            status=st.just(status),
            weights_baked=st.just(False),
            batch_size=st.integers(1, 1024),
            artifacts=some("artifacts"),
            structured_outputs=st.lists(OBJECT, max_size=2),
            engine=st.none() | st.builds(EngineRecord, engine=TEXT, revision=TEXT),
            checkpoint=st.none() | st.builds(CheckpointRecord, id=TEXT, revision=st.none() | TEXT),
            weights=st.sampled_from(["random", "pretrained", "unknown"]),
            seeds=st.dictionaries(NAME, st.none() | st.integers(0, 2**32 - 1), max_size=3),
            samples=some("samples"),
            missing=st.lists(NAME, max_size=2),
            phases=st.dictionaries(NAME, SECONDS, max_size=3),
            media=some("media"),
            runtime_image=TEXT,
            client_version=TEXT,
            recovery=RECOVERY if status == "recovered" else st.none(),
            **said,
        )
    )


@settings(deadline=None, max_examples=50)
@given(record=provenances())
def test_what_is_written_is_read_back_as_the_same_record(record):
    again = Provenance.model_validate_json(record.to_bytes())
    assert again == record
    assert again.to_bytes() == record.to_bytes()
