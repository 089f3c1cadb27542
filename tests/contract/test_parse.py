import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmos3_serve.contract import findings, limits
from cosmos3_serve.contract.batch import BatchRequest, body_sha256
from cosmos3_serve.contract.grouping import shape_key, wave_key
from cosmos3_serve.contract.jsontext import decode_json
from cosmos3_serve.contract.media import requested
from cosmos3_serve.contract.modes import ModelMode
from cosmos3_serve.contract.parse import parse_batch
from cosmos3_serve.contract.profile import FRAMEWORK_PROFILE, diffusers_profile
from cosmos3_serve.contract.resolve import negative_text, prompt_text, resolve_batch
from cosmos3_serve.contract.sample import FIELD_NAMES
from cosmos3_serve.errors import (
    InputError,
    InvalidRequestId,
    LimitExceeded,
    ModeNotSupported,
    StorageAuthorizationError,
    ValidationFailed,
)

DIFFUSERS = diffusers_profile("0.42.1")


def parse(*samples, **options):
    body = {"samples": list(samples), **options.pop("top", {})}
    return parse_batch(body, max_samples=options.pop("max_samples", 1024), **options)


def refusal(kind, *samples, **options):
    with pytest.raises(kind) as caught:
        parse(*samples, **options)
    assert type(caught.value) is kind
    return caught.value


def fields(error):
    return [item.field for item in error.errors]


def test_a_batch_with_defaults():
    request = parse({"name": "a", "prompt": "x"}, top={"unknown": 1, "prompt": "dropped"})
    assert request == BatchRequest(samples=[{"name": "a", "prompt": "x"}], model="Cosmos3-Nano", request_id="")
    assert list(request.body()) == ["samples", "model", "request_id"]


@pytest.mark.parametrize("body", [None, [], "x", 5, [{"name": "a"}]])
def test_the_body_is_an_object(body):
    with pytest.raises(ValidationFailed, match="JSON object"):
        parse_batch(body, max_samples=9)


@pytest.mark.parametrize("samples", [None, [], {}, "x", 1])
def test_at_least_one_sample(samples):
    with pytest.raises(ValidationFailed) as caught:
        parse_batch({"samples": samples}, max_samples=9)
    assert fields(caught.value) == ["samples"]
    with pytest.raises(ValidationFailed):
        parse_batch({}, max_samples=9)


@pytest.mark.parametrize(("key", "value"), [("model", 5), ("model", None), ("request_id", 5), ("request_id", None)])
def test_top_level_strings(key, value):
    assert fields(refusal(ValidationFailed, {"name": "a"}, top={key: value})) == [key]


def test_the_number_of_samples_is_limited():
    error = refusal(LimitExceeded, *({"name": f"s{i}"} for i in range(4)), max_samples=3)
    assert "at most 3" in error.detail
    assert error.status == 413
    assert len(parse(*({"name": f"s{i}"} for i in range(3)), max_samples=3).samples) == 3


@pytest.mark.parametrize("request_id", [".a", "a" * 129, "a/b", "../x", "a\n", " a"])
def test_request_id(request_id):
    error = refusal(InvalidRequestId, {"name": "a"}, {"name": "a"}, top={"request_id": request_id})
    assert (error.status, error.detail) == (400, "invalid request id")
    assert fields(error) == ["request_id", "samples[1].name"]
    assert parse({"name": "a"}, top={"request_id": "a..b"}).request_id == "a..b"


@pytest.mark.parametrize(
    ("name", "kept"), [("a", "a"), (" a ", "a"), (5, "5"), (0, "0"), (1.5, "1.5"), (True, "True"), ("inputs", "inputs")]
)
def test_names_are_stripped_text(name, kept):
    assert parse({"name": name}).names == [kept]


@pytest.mark.parametrize("name", [None, "", "  ", ".a", "a b", "a" * 129, [], {}, ["a"], -1, "é", "a/../b"])
def test_bad_names(name):
    assert fields(refusal(ValidationFailed, {"name": name})) == ["samples[0].name"]


def test_names_are_unique_after_strip_and_case_counts():
    assert parse({"name": "a"}, {"name": "A"}, {"name": "1"}).names == ["a", "A", "1"]
    for twin in (" a", "a"):
        error = refusal(ValidationFailed, {"name": "a"}, {"name": "b"}, {"name": twin})
        assert fields(error) == ["samples[2].name"]
        assert "samples[0]" in error.errors[0].message
    assert fields(refusal(ValidationFailed, {"name": "1"}, {"name": 1})) == ["samples[1].name"]


@pytest.mark.parametrize("sample", [None, 1, "x", [], [{}]])
def test_samples_are_objects(sample):
    assert fields(refusal(ValidationFailed, {"name": "a"}, sample)) == ["samples[1]"]


def nested(levels):
    value = {}
    for _ in range(levels):
        value = {"k": value}
    return value


@pytest.mark.parametrize(
    "bad",
    [
        {"extra": nested(100_000)},
        {"extra": {str(i): i for i in range(limits.MAX_SAMPLE_NODES)}},
        {"extra": {"x": float("nan")}},
        {"guidance": float("inf")},
        {"prompt": "\ud800"},
        {"\udfff": 1},
    ],
)
def test_hostile_values_are_findings(bad):
    error = refusal(ValidationFailed, {"name": "a", **bad}, profile=DIFFUSERS)
    assert error.errors[0].field.startswith("samples[0]")
    error.as_problem()["detail"].encode()


def test_unknown_keys_are_named_with_a_guess():
    error = refusal(ValidationFailed, {"name": "a", "num_step": 4, "frames": 9})
    assert {(e.field, e.remedy) for e in error.errors} == {
        ("samples[0].num_step", "did you mean num_steps?"),
        ("samples[0].frames", "did you mean num_frames?"),
    }


def test_everything_at_once():
    error = refusal(
        ValidationFailed,
        {"name": "a", "num_frames": 24.5, "edge": {"weight": "x"}},
        {"name": "a"},
        {"name": "b", "num_outputs": 2, "vision_path": "http://h/x.png"},
        {"prompt": 5},
        profile=DIFFUSERS,
    )
    assert set(fields(error)) == {
        "samples[0].num_frames",
        "samples[0].edge.weight",
        "samples[1].name",
        "samples[2].num_outputs",
        "samples[2].vision_path",
        "samples[3].name",
        "samples[3].prompt",
    }
    assert "more)" in error.detail


@pytest.mark.parametrize(
    ("sample", "detail", "field"),
    [
        ({"output_dir": "/x"}, "sample filesystem configuration is server-owned", "output_dir"),
        ({"extra": {"defaults_file": "x"}}, "sample filesystem configuration is server-owned", "extra.defaults_file"),
        ({"vision_path": "/etc/passwd"}, "sample inputs require an authorized s3:// object", "vision_path"),
        ({"edge": {"control_path": "https://h/x"}}, "sample inputs require an authorized s3:// object",
         "edge.control_path"),
        ({"prompt_path": "p.txt"}, "sample inputs require an authorized s3:// object", "prompt_path"),
        ({"sound_path": "s3://b/d/"}, "sample inputs must identify a single S3 object", "sound_path"),
        ({"tensors_file": "s3://b/x"}, "unsupported sample file input", "tensors_file"),
        ({"pickle_file": "s3://b/x"}, "unsupported sample file input", "pickle_file"),
        ({"extra": {"my_url": "x"}}, "unsupported sample file input", "extra.my_url"),
    ],
)  # fmt: skip
def test_storage_refusals_keep_the_baselines_text(sample, detail, field):
    error = refusal(StorageAuthorizationError, {"name": "a", **sample}, profile=DIFFUSERS)
    assert (error.status, error.detail) == (400, detail)
    assert fields(error) == [f"samples[0].{field}"]


def test_storage_beats_fields_and_structure_beats_storage():
    bad_input, bad_field = {"name": "a", "vision_path": "x.png"}, {"name": "b", "num_frames": 0}
    assert len(refusal(StorageAuthorizationError, bad_input, bad_field).errors) == 2
    assert len(refusal(ValidationFailed, bad_input, bad_field, {}).errors) == 3


def test_each_input_uri_is_checked():
    seen = []

    def check(uri):
        seen.append(uri)
        if "secret" in uri:
            raise StorageAuthorizationError("read S3 URI is outside the configured bucket/prefix roots", remedy="ask")

    good = {"name": "a", "vision_path": "s3://b/i.png", "wsm": {"control_path": "s3://b/c.mp4"}}
    assert parse(good, check_uri=check).names == ["a"]
    assert seen == ["s3://b/i.png", "s3://b/c.mp4"]
    bad = {"name": "b", "vision_path": "s3://secret/i.png", "prompt_path": "http://x"}
    error = refusal(StorageAuthorizationError, good, bad, check_uri=check)
    assert fields(error) == ["samples[1].prompt_path", "samples[1].vision_path"]
    assert error.errors[1].remedy == "ask"


def test_the_engine_is_asked_when_named():
    sample = {"name": "a", "model_mode": "reasoner", "prompt": "x"}
    assert parse(sample, profile=FRAMEWORK_PROFILE).names == ["a"]
    error = refusal(ModeNotSupported, sample, profile=DIFFUSERS)
    assert error.stable_code == "mode_not_supported"
    mixed = refusal(ValidationFailed, sample, {"name": "b", "model_mode": "wam"}, profile=DIFFUSERS)
    assert fields(mixed)[0] == "samples[0].model_mode"


def test_a_sample_names_the_batchs_model_or_none():
    assert parse({"name": "a", "model": "Cosmos3-Nano"}, {"name": "b", "model": ""}).names == ["a", "b"]
    assert fields(refusal(ValidationFailed, {"name": "a", "model": "Other"})) == ["samples[0].model"]


def test_findings_are_bounded():
    samples = [{"name": f"s{i}", **{f"unknown{k}" * 50: 1 for k in range(9)}} for i in range(100)]
    error = refusal(ValidationFailed, *samples)
    assert len(error.errors) == limits.MAX_FINDINGS
    assert error.errors[-1].message == "9 more findings are not listed and 88 samples were not examined"
    assert all(len(item.field) < 200 for item in error.errors)


def test_guessing_is_bounded(monkeypatch):
    """Keys cost a hostile client little; each guess at their meaning costs us a millisecond."""
    guesses = []
    monkeypatch.setattr(findings, "get_close_matches", lambda word, *rest, **more: guesses.append(word) or [])
    keys = {f"unknown{k}": 1 for k in range(500)} | {f"u{k}_path": "x" for k in range(500)}
    refusal(StorageAuthorizationError, *({"name": f"s{i}", **keys} for i in range(50)), profile=DIFFUSERS)
    assert len(guesses) <= 2 * limits.MAX_GUESSES


def test_the_request_is_a_copy():
    sample = {"name": " a "}
    parse(sample)
    assert sample == {"name": " a "}


def test_body_hash_is_about_model_and_samples_only():
    base = BatchRequest(samples=[{"name": "a", "seed": 1}], request_id="x")
    same = BatchRequest(samples=[{"seed": 1, "name": "a"}], request_id="y")
    assert body_sha256(base) == body_sha256(same)
    for other in ([{"name": "a", "seed": 2}], [{"name": "a", "seed": 1.0}], [{"name": "a", "seed": 1}, {"name": "b"}]):
        assert body_sha256(BatchRequest(samples=other)) != body_sha256(base)
    assert body_sha256(BatchRequest(samples=base.samples, model="m")) != body_sha256(base)
    assert body_sha256(parse({"name": " a"})) == body_sha256(parse({"name": "a"}))


NAMES = st.sampled_from(FIELD_NAMES) | st.sampled_from(["promt", "x_path", "control_path", "weight"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["s3://b/a.mp4", "s3://b/a.png", "text2video", "256", "1,1", "{fps}", "av", 1, 25]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
SAMPLES = st.dictionaries(NAMES, VALUES, max_size=8) | VALUES


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from(["samples", "model", "request_id", "z"]), VALUES), st.lists(SAMPLES, max_size=3))
def test_any_json_is_accepted_or_refused_by_name(top, samples):
    for profile in (None, FRAMEWORK_PROFILE, DIFFUSERS):
        try:
            request = parse_batch({"samples": samples, **top}, max_samples=10, profile=profile)
        except InputError as error:
            assert error.status in (400, 413, 422)
            assert error.detail
            assert all(item.field and item.message for item in error.errors)
        else:
            assert len(set(request.names)) == len(request.samples) >= 1
            body_sha256(request)
            for sample in resolve_batch(request, profile, draw_seed=lambda: 7) if profile else ():
                assert decode_json(json.dumps(sample.model_dump(mode="json"), allow_nan=False).encode())
                assert hash(shape_key(sample)) == hash(shape_key(sample))
                assert isinstance(wave_key(sample), tuple)
                assert isinstance(prompt_text(sample) + negative_text(sample), str)


LIKELY = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b", "c"])},
    optional={
        "model_mode": st.sampled_from([*map(str, ModelMode)]),
        "prompt": st.sampled_from(["", "x.", '{"a": 1}']),
        "vision_path": st.sampled_from(["s3://b/i.png", "s3://b/v.mp4"]),
        "num_frames": st.sampled_from([1, 2, 25, 49]),
        "edge": st.sampled_from([{}, {"control_path": "s3://b/c.mp4"}, {"control_path": "s3://b/c.png"}]),
        "domain_name": st.just("av"),
        "action_path": st.just("s3://b/a.json"),
        "resolution": st.sampled_from(["256", "1080"]),
        "aspect_ratio": st.sampled_from(["1,1", "16,9"]),
        "negative_metadata_mode": st.sampled_from(["none", "same", "inverse"]),
        "condition_frame_indexes_vision": st.lists(st.integers(0, 2), max_size=2),
    },
)


@settings(max_examples=150)
@given(LIKELY)
def test_what_resolves_is_consistent(sample):
    for profile in (FRAMEWORK_PROFILE, DIFFUSERS, diffusers_profile("0", tiny=True)):
        try:
            request = parse_batch({"samples": [sample]}, max_samples=1, profile=profile)
        except ValidationFailed:
            continue
        (resolved,) = resolve_batch(request, profile, draw_seed=lambda: 7)
        promise = requested(sample)
        assert resolved.model_mode in profile.supported_modes
        assert resolved.model_mode == promise.mode
        assert set(resolved.hints) == promise.hints
        if not promise.is_text:  # what a client will hold the response to
            assert promise.is_image == (resolved.num_frames == 1)
        if promise.mode != "reasoner":  # which never rounds, not even with hints
            assert resolved.num_frames % 4 == 1
