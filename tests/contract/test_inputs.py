import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos3_serve.contract.inputs import (
    NEEDS_S3,
    NOT_ONE_OBJECT,
    SERVER_OWNED,
    UNSUPPORTED,
    check_server_owned,
    fold_text_inputs,
    input_fields,
    replace_inputs,
)
from cosmos3_serve.errors import StorageAuthorizationError

URI = "s3://bucket/a.png"
PLACES = [
    {"vision_path": URI},
    {"sound_path": URI},
    {"action_path": URI},
    {"prompt_path": URI},
    {"negative_prompt_file": URI},
    *({hint: {"control_path": URI}} for hint in ("edge", "blur", "depth", "seg", "wsm")),
]


def refusal(sample):
    with pytest.raises(StorageAuthorizationError) as caught:
        input_fields(sample)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("sample", PLACES)
def test_each_input_place_is_found(sample):
    (found,) = input_fields(sample)
    assert found.uri == URI
    assert found.is_text == (found.path[0] in ("prompt_path", "negative_prompt_file"))


def test_order_is_the_samples_own_and_nulls_are_absent():
    sample = {"name": "a", "wsm": {"control_path": "s3://b/1"}, "vision_path": "s3://b/2", "sound_path": None}
    assert [(f.field, f.uri) for f in input_fields(sample)] == [
        ("vision_path", "s3://b/2"),
        ("wsm.control_path", "s3://b/1"),
    ]
    assert input_fields({"name": "a", "prompt": "s3://not/an/input", "output_dir": None, "tensors_file": None}) == []


@pytest.mark.parametrize("key", ["output_dir", "defaults_file"])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"extra": x}, lambda x: {"extra": {"l": [[x]]}}])
@pytest.mark.parametrize("value", ["/tmp/x", "s3://b/k", "", 0, False, {}])
def test_server_owned_keys_at_any_depth(key, wrap, value):
    error = refusal(wrap({key: value}))
    assert error.detail == SERVER_OWNED == "sample filesystem configuration is server-owned"
    assert error.errors[0].field.endswith(key)


@pytest.mark.parametrize("sample", PLACES)
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("/etc/passwd", NEEDS_S3),
        ("file:///etc/passwd", NEEDS_S3),
        ("http://169.254.169.254/x.png", NEEDS_S3),
        ("https://host/x.png", NEEDS_S3),
        ("S3://bucket/x.png", NEEDS_S3),
        (" s3://bucket/x.png", NEEDS_S3),
        ("", NEEDS_S3),
        (5, NEEDS_S3),
        ([URI], NEEDS_S3),
        ({"uri": URI}, NEEDS_S3),
        ("s3://bucket", NOT_ONE_OBJECT),
        ("s3://bucket/", NOT_ONE_OBJECT),
        ("s3://bucket/dir/", NOT_ONE_OBJECT),
    ],
)
def test_what_is_no_input(sample, value, text):
    (key,) = sample
    bad = {key: {"control_path": value}} if isinstance(sample[key], dict) else {key: value}
    assert refusal(bad).detail == text


def test_the_texts_are_the_baselines():
    assert NEEDS_S3 == "sample inputs require an authorized s3:// object"
    assert NOT_ONE_OBJECT == "sample inputs must identify a single S3 object"
    assert UNSUPPORTED == "unsupported sample file input"


@pytest.mark.parametrize(
    "sample",
    [
        {"tensors_file": URI},
        {"pickle_file": "x"},
        {"some_path": URI},
        {"image_url": URI},
        {"cache_dir": "x"},
        {"extra": {"vision_path": URI}},
        {"extra": {"edge": {"control_path": URI}}},
        {"edge": {"vision_path": URI}},
        {"vision": [{"x_file": 0}]},
        {"name": {"control_path": URI}},
        {"control_path": URI},
    ],
)
def test_any_other_file_like_key_at_any_depth(sample):
    assert refusal(sample).detail == UNSUPPORTED


def test_list_elements_keep_the_place_of_the_list():
    (found,) = input_fields({"edge": [{"control_path": URI}]})
    assert found.field == "edge[0].control_path"
    assert replace_inputs({"edge": [{"control_path": URI}]}, {found.path: "x"}) == {"edge": [{"control_path": "x"}]}


def test_server_owned_comes_first_and_everything_is_listed():
    error = refusal({"x_path": "1", "extra": {"output_dir": "x"}})
    assert error.detail == SERVER_OWNED
    error = refusal({"vison_path": URI, "sound_path": "http://x"})
    assert {e.field for e in error.errors} == {"vison_path", "sound_path"}
    assert error.errors[0].remedy == "did you mean vision_path?"


def test_check_server_owned_alone():
    check_server_owned({"vision_path": "/local"})
    with pytest.raises(StorageAuthorizationError):
        check_server_owned({"extra": [{"defaults_file": 1}]})


def test_replacing_leaves_the_sample_alone():
    sample = {"vision_path": URI, "edge": {"control_path": URI, "weight": 2}}
    changed = replace_inputs(sample, {("vision_path",): "/s/0.png", ("edge", "control_path"): "/s/1.png"})
    assert changed == {"vision_path": "/s/0.png", "edge": {"control_path": "/s/1.png", "weight": 2}}
    assert sample["edge"]["control_path"] == URI
    with pytest.raises(KeyError):
        replace_inputs(sample, {("sound_path",): "x"})


@pytest.mark.parametrize(
    ("sample", "folded"),
    [
        ({"prompt_path": "s3://b/p.txt"}, {"prompt": "a robot"}),
        ({"prompt_path": "s3://b/p.txt", "prompt": "mine"}, {"prompt": "mine"}),
        ({"prompt_path": "s3://b/p.txt", "prompt": ""}, {"prompt": ""}),
        ({"prompt_path": None, "prompt": "mine"}, {"prompt": "mine"}),
        ({"edge": {}, "negative_prompt_file": "s3://b/n.txt"}, {"edge": {}, "negative_prompt": "blurry"}),
        ({"edge": {}, "prompt_path": "s3://b/p.json"}, {"edge": {}, "prompt": '{"a": 1}'}),
    ],
)
def test_text_inputs_are_folded_by_the_frameworks_rules(sample, folded):
    texts = {("prompt_path",): "  a robot\n", ("negative_prompt_file",): "blurry\n"}
    if str(sample.get("prompt_path")).endswith(".json"):
        texts[("prompt_path",)] = '{\n "a":1 }'
    assert fold_text_inputs(sample, texts) == folded


def test_a_json_prompt_object_that_is_not_json():
    with pytest.raises(ValueError, match="prompt_path is not JSON"):
        fold_text_inputs({"edge": {}, "prompt_path": "s3://b/p.json"}, {("prompt_path",): "{"})


KEYS = st.sampled_from(
    ["vision_path", "edge", "control_path", "output_dir", "x_url", "extra", "name", "prompt", "tensors_file"]
)
JSON = st.recursive(
    st.none() | st.text(max_size=5) | st.just(URI) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=15,
)


@given(st.dictionaries(KEYS, JSON, max_size=5))
def test_what_is_accepted_holds_no_file_that_is_not_listed(sample):
    try:
        found = input_fields(sample)
    except StorageAuthorizationError as error:
        assert error.errors
        return
    blanked = replace_inputs(sample, {item.path: None for item in found})
    assert not file_like(blanked)


def file_like(value):
    if isinstance(value, list):
        return any(map(file_like, value))
    if not isinstance(value, dict):
        return False
    ends = ("_path", "_file", "_dir", "_url")
    return any((v is not None and k.endswith(ends)) or file_like(v) for k, v in value.items())
