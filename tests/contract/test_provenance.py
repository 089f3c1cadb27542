import json

import pytest
from pydantic import ValidationError

from cosmos3_serve.contract.provenance import Plan, Provenance

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
