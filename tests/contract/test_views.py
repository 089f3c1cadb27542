"""Ledger views, readiness and records."""

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from cosmos3_serve.contract.records import Artifact, SampleOutputs, SampleRecord, SampleState
from cosmos3_serve.contract.views import BatchEvent, BatchState, BatchView, Check, ReadyReport, SampleView, batch_state

Q, R, S, F, C, G = (
    SampleState.QUEUED,
    SampleState.RUNNING,
    SampleState.SUCCEEDED,
    SampleState.FAILED,
    SampleState.CANCELLED,
    SampleState.STAGING,
)


@pytest.mark.parametrize(
    ("samples", "state"),
    [
        ([Q, Q], "queued"),
        ([Q, G], "running"),
        ([G], "running"),
        ([S, Q], "running"),
        ([F, R], "running"),
        ([C, Q], "running"),
        ([S, S], "succeeded"),
        ([S, F], "failed"),
        ([S, C], "failed"),
        ([F, C], "failed"),
        ([C, C], "cancelled"),
    ],
)
def test_batch_state(samples, state):
    made = batch_state(samples)
    assert made == state
    assert made.ended == (state in ("succeeded", "failed", "cancelled"))


def test_views_are_json_and_back():
    now = datetime(2026, 1, 2, tzinfo=UTC)
    view = BatchView(
        request_id="r", state=BatchState.RUNNING, model="m", created_at=now, samples=[SampleView(name="a", state=R)]
    )
    assert BatchView.model_validate_json(view.model_dump_json()) == view
    assert view.model_dump(mode="json")["created_at"] == "2026-01-02T00:00:00Z"
    event = BatchEvent(id=3, type="progress", sample="a", step=1, total_steps=4, at=now)
    assert BatchEvent.model_validate_json(event.model_dump_json()) == event
    with pytest.raises(ValidationError):
        BatchEvent(id=3, type="other", at=now)


def report(*checks):
    return ReadyReport(
        backend="b",
        model="m",
        guardrails=True,
        world_size=1,
        max_batch_size=4,
        model_max_ongoing_requests=8,
        batch_wait_timeout_s=0.05,
        framework_revision="r",
        server_source_revision="0" * 40,
        checks=list(checks),
    )


def test_ready_only_when_there_are_checks_and_all_hold():
    good, bad = Check(name="weights", ok=True), Check(name="canary", ok=False, reason="has not run")
    assert report(good).status == "ready"
    assert report().status == "not_ready"
    assert report(good, bad).status == "not_ready"
    assert report(good, bad).failing == [bad]


def test_ready_keeps_the_baselines_fields():
    body = report(Check(name="x", ok=True)).model_dump(mode="json")
    baseline = {
        *("status", "backend", "model", "guardrails", "world_size", "max_batch_size", "model_max_ongoing_requests"),
        *("batch_wait_timeout_s", "framework_revision", "server_source_revision", "weights_baked"),
    }
    assert baseline <= set(body)
    assert body["weights_baked"] is False
    assert ReadyReport.model_validate(body).status == "ready"


ARTIFACT = {"sample": "a", "path": "r/a/vision.jpg", "bytes": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    "change",
    [
        {"bytes": 0},
        {"bytes": True},
        {"bytes": 1.0},
        {"bytes": "1"},
        {"sha256": "0" * 63},
        {"sha256": "A" * 64},
        {"sha256": "0" * 64 + "\n"},
        {"path": "/r/a/x"},
        {"path": "r/../x"},
        {"sample": 5},
    ],
)
def test_artifacts_are_strict(change):
    Artifact.model_validate(ARTIFACT)
    with pytest.raises(ValidationError):
        Artifact.model_validate({**ARTIFACT, **change})


def test_sample_outputs_are_upstreams():
    made = SampleOutputs.model_validate({"args": {"name": "a"}})
    assert made.model_dump() == {
        "args": {"name": "a"},
        "status": "success",
        "message": None,
        "stack_trace": None,
        "outputs": [],
    }
    for bad in ({"args": {}}, {"args": {"name": "a"}, "extra": 1}, {"args": {"name": "a"}, "status": "ok"}):
        with pytest.raises(ValidationError):
            SampleOutputs.model_validate(bad)


def test_records_read_their_own_json():
    record = SampleRecord(name="a", state=F, code="engine_failed", timings={"queue": 0.5})
    assert SampleRecord.model_validate(record.model_dump(mode="json")) == record
    assert SampleRecord.model_validate_json(record.model_dump_json()) == record
    with pytest.raises(ValidationError):
        SampleRecord(name="a", state=F, timings={"queue": float("nan")})
