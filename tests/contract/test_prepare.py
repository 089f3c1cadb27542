import pytest

from cosmos3_serve.contract.prepare import prepare_request
from cosmos3_serve.errors import InvalidRequestId, StorageAuthorizationError, ValidationFailed


def refusal(*samples, **top):
    with pytest.raises(ValidationFailed) as caught:
        prepare_request({"samples": list(samples), **top})
    assert caught.value.detail.startswith("invalid Cosmos3 Ray batch: ")
    assert caught.value.exit_code == 2
    return caught.value


def test_a_list_is_short_for_samples():
    request = prepare_request([{"name": "a"}])
    assert request.body() == {"samples": [{"name": "a"}], "model": "Cosmos3-Nano", "request_id": ""}


@pytest.mark.parametrize("body", [None, "x", 5, {}, [], {"samples": []}, {"samples": {}}])
def test_what_is_no_batch(body):
    with pytest.raises(ValidationFailed, match="invalid Cosmos3 Ray batch"):
        prepare_request(body)


@pytest.mark.parametrize("value", [1, "1", "1.0", " 1 ", 1.0, True])
@pytest.mark.parametrize("field", ["seed", "num_frames", "num_outputs"])
def test_given_numbers_become_numbers(field, value):
    (sample,) = prepare_request([{"name": "a", field: value}]).samples
    assert sample == {"name": "a", field: 1}
    assert type(sample[field]) is int


def test_only_given_fields_are_rewritten_and_nulls_stay():
    sent = {"name": "a", "seed": None, "num_frames": "25", "num_steps": "4", "guidance": "3"}
    assert prepare_request([sent]).samples == [{**sent, "num_frames": 25}]
    assert sent["num_frames"] == "25"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field in ("seed", "num_frames", "num_outputs") for value in (1.5, "1.5", "x", "", [], {})),
        ("num_frames", 0),
        ("num_outputs", 0),
        ("num_frames", -1),
        ("seed", float("nan")),
    ],
)
def test_bad_numbers(field, value):
    (finding,) = refusal({"name": "a", field: value}).errors
    assert finding.field == f"samples[0].{field}"
    assert finding.message == "invalid numeric Cosmos3 sample overrides" or value != value


def test_one_output_a_sample():
    assert prepare_request([{"name": "a", "num_outputs": None}])
    (finding,) = refusal({"name": "a", "num_outputs": "2"}).errors
    assert finding.field == "samples[0].num_outputs"
    assert "name several samples" in finding.remedy


@pytest.mark.parametrize("name", [" a", "a ", 5, True, "", None, ".a", "a\n"])
def test_names_are_safe_as_written(name):
    assert [e.field for e in refusal({"name": name}).errors] == ["samples[0].name"]


def test_the_model_is_the_expected_one():
    assert [e.field for e in refusal({"name": "a"}, model="Other").errors] == ["model"]
    assert prepare_request({"samples": [{"name": "a"}], "model": "Other"}, model="Other").model == "Other"


@pytest.mark.parametrize(
    "sample",
    [
        {"defaults_file": "x"},
        {"output_dir": "x"},
        {"pickle_file": "s3://b/x"},
        {"vision_path": "/local.png"},
        {"vision_path": "http://h/i.png"},
        {"vision_path": 5},
        {"vision_path": "s3://b/i.gif"},
        {"vision_path": "s3://b/v.mp4", "num_frames": 1},
        {"model_mode": "tex2image"},
        {"model_mode": 7},
        {"no_such_key": 1},
    ],
)
def test_what_cost_a_round_trip_is_refused_here(sample):
    assert len(refusal({"name": "a", **sample}).errors) == 1


def test_uris_are_checked_by_the_callers_rule():
    def check(uri):
        if "?" in uri:
            raise StorageAuthorizationError("malformed S3 URI: it has a query")

    assert prepare_request([{"name": "a", "vision_path": "s3://b/i.png"}], check_uri=check)
    with pytest.raises(ValidationFailed) as caught:
        prepare_request([{"name": "a", "edge": {"control_path": "s3://b/i?x=.png"}}], check_uri=check)
    (finding,) = caught.value.errors
    assert finding.field == "samples[0].edge.control_path"
    assert finding.message == "invalid conditioning S3 URI: malformed S3 URI: it has a query"


def test_request_id_keeps_its_own_error():
    with pytest.raises(InvalidRequestId):
        prepare_request({"samples": [{"name": "a"}], "request_id": "../x"})


def test_everything_at_once():
    error = refusal({"name": " a", "seed": "x"}, {"name": "b", "vision_path": "x.png", "promt": 1}, model="m")
    assert {e.field for e in error.errors} == {
        "model",
        "samples[0].name",
        "samples[0].seed",
        "samples[1].vision_path",
        "samples[1].promt",
    }
