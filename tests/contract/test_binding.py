"""Every rule of docs/contract.md 4.2: one good response, and one broken copy per rule."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.contract.binding import bind_partial, bind_response
from cosmos3_serve.contract.prepare import prepare_request
from cosmos3_serve.contract.wire import FRAMEWORK_REVISION
from cosmos3_serve.errors import ContractViolation

SHA = "0" * 64
SAMPLES = [
    {"name": "img", "model_mode": "text2image", "seed": 17},
    {"name": "clip", "vision_path": "s3://b/v%2Emp4", "edge": {}, "wsm": None},
    {"name": "ask", "model_mode": "reasoner", "prompt": "x"},
]
REQUEST = prepare_request({"samples": SAMPLES, "request_id": "req"})


def result(name, mode, frames, files, **args):
    args = {"name": name, "model_mode": mode, "num_frames": frames, "seed": 4, **args}
    paths = [f"req/{name}/{file}" for file in files]
    return {
        "args": args,
        "status": "success",
        "message": None,
        "stack_trace": None,
        "outputs": [{"content": {}, "files": paths}],
    }


def response():
    outputs = [
        result("img", "text2image", 1, ["output.safetensors", "vision.jpg"], seed=17),
        result("clip", "video2video", 189, ["vision.mp4", "control_edge.mp4"], edge={"weight": 1.0}, depth=None),
        result("ask", "reasoner", 1, ["reasoner_text.txt"]),
    ]
    artifacts = [
        {"sample": r["args"]["name"], "path": path, "bytes": 3, "sha256": SHA}
        for r in outputs
        for path in r["outputs"][0]["files"]
    ]
    return {
        "schema_version": "npa.cosmos3.ray-serve.batch.v1",
        "request_id": "req",
        "model": "Cosmos3-Nano",
        "batch_size": 3,
        "outputs": outputs,
        "artifacts": artifacts,
        "guardrails": True,
        "max_batch_size": 4,
        "framework_revision": FRAMEWORK_REVISION,
        "server_source_revision": "a" * 40,
    }


def test_a_good_response():
    bound = bind_response(REQUEST, {**response(), "of_tomorrow": 1})
    assert bound.batch_size == 3
    assert bound.samples == []
    assert not hasattr(bound, "of_tomorrow")


def test_results_may_come_in_any_order():
    body = response()
    body["outputs"].reverse()
    body["artifacts"].reverse()
    assert bind_response(REQUEST, body)


def broken(change):
    body = response()
    change(body)
    with pytest.raises(ContractViolation) as caught:
        bind_response(REQUEST, body)
    return caught.value


def put(*path_and_value):
    *path, last, value = path_and_value

    def change(body):
        for part in path:
            body = body[part]
        body[last] = value

    return change


def drop(*path):
    def change(body):
        for part in path[:-1]:
            body = body[part]
        del body[path[-1]]

    return change


FILES = ("outputs", 0, "outputs", 0, "files")
ENVELOPE = [
    (put("schema_version", "v2"), "schema_version"),
    (drop("schema_version"), "schema_version"),
    # strict types
    (put("batch_size", "3"), "batch_size"),
    (put("batch_size", 3.0), "batch_size"),
    (put("guardrails", 1), "guardrails"),
    (put("max_batch_size", True), "max_batch_size"),
    (put("max_batch_size", 0), "max_batch_size"),
    (put("server_source_revision", "A" * 40), "server_source_revision"),
    (put("server_source_revision", "a" * 39), "server_source_revision"),
    (put("outputs", {}), "outputs"),
    (put("outputs", 0, "x"), "outputs[0]"),
    (put("artifacts", 0, "bytes", 0), "bytes"),
    (put("artifacts", 0, "bytes", True), "bytes"),
    (put("artifacts", 0, "sha256", "0" * 63), "sha256"),
    (put("artifacts", 0, "path", "/req/img/vision.jpg"), "path"),
    (put("artifacts", 0, "path", "req/img/../vision.jpg"), "path"),
    (put("outputs", 0, "outputs", 0, "content", {"action": [float("nan")]}), "finite"),
    (drop("guardrails"), "guardrails"),
    (put("model", "Other"), "model"),
    (put("request_id", "other"), "request_id"),
    (put("framework_revision", "f" * 40), "framework_revision"),
    (put("batch_size", 2), "batch_size"),
    (drop("outputs", 2), "number of outputs"),
    # names
    (put("outputs", 0, "args", []), "no requested sample"),
    (drop("outputs", 0, "args"), "no requested sample"),
    (put("outputs", 0, "args", "name", "other"), "no requested sample"),
    (put("outputs", 0, "args", "name", 5), "no requested sample"),
    (put("outputs", 0, "args", "name", "clip"), "more than one result"),
    # artifacts of others
    (put("artifacts", 0, "sample", "other"), "requested sample"),
    (put("artifacts", 0, "path", "req/clip/vision.jpg"), "outside"),
    (put("artifacts", 0, "path", "other/img/vision.jpg"), "outside"),
    (put("artifacts", 0, "path", "req/img"), "fewer than three"),
    (put("artifacts", 0, "path", "req/img/.x"), "safe name"),
    (put("artifacts", 0, "path", "req/img/vision.jpg"), "twice"),
]
RESULT = [
    (put("outputs", 0, "status", "error"), "status is error"),
    (put("outputs", 0, "status", "skip"), "status is skip"),
    (drop("outputs", 0, "status"), "status"),
    (put("outputs", 0, "args", "model_mode", "text2video"), "model_mode"),
    (put("outputs", 0, "args", "model_mode", None), "model_mode"),
    (put("outputs", 0, "args", "seed", 18), "seed"),
    (put("outputs", 0, "args", "seed", "17"), "seed"),
    (put("outputs", 0, "args", "seed", 17.0), "seed"),
    (put("outputs", 0, "args", "seed", None), "seed"),
    (put("outputs", 0, "args", "num_frames", True), "num_frames"),
    (put("outputs", 0, "args", "num_frames", 1.0), "num_frames"),
    (put("outputs", 0, "args", "num_frames", 0), "num_frames"),
    (drop("outputs", 0, "args", "num_frames"), "num_frames"),
    (put("outputs", 0, "args", "num_frames", 5), "was requested"),
    (put("outputs", 0, "args", "edge", {}), "hints"),
    (put("outputs", 0, "outputs", []), "outputs"),
    (put("outputs", 0, "outputs", None), "outputs"),
    (put("outputs", 0, "outputs", ["x"]), "content"),
    (put("outputs", 0, "outputs", 0, "content", []), "content"),
    (drop("outputs", 0, "outputs", 0, "content"), "content"),
    (put("outputs", 0, "outputs", 0, "files", []), "files"),
    (drop("outputs", 0, "outputs", 0, "files"), "files"),
    (put(*FILES, 0, "req/img"), "fewer than three"),
    (put(*FILES, 0, "req/clip/x"), "outside"),
    (put(*FILES, 0, "other/img/x"), "outside"),
    (put(*FILES, 0, "req/img/../../x"), "safe name"),
    (put(*FILES, 0, "req/img/a b"), "safe name"),
    (put(*FILES, 0, 5), "not text"),
    (put(*FILES, 0, "req/img/vision.jpg"), "twice"),
    (put(*FILES, 1, "req/img/vision.png"), "vision.jpg"),
    (put(*FILES, 1, "req/img/deep/vision.jpg"), "vision.jpg"),
    # files and artifacts are one set
    (put(*FILES, 0, "req/img/undeclared.bin"), "artifacts differ"),
    (put("artifacts", 0, "path", "req/img/extra.bin"), "artifacts differ"),
    (drop("artifacts", 0), "artifacts differ"),
]


@pytest.mark.parametrize(("change", "said"), ENVELOPE + RESULT)
def test_each_rule(change, said):
    assert said in str(broken(change))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("outputs", 1, "args", "edge", None), "hints"),
        (put("outputs", 1, "args", "wsm", {}), "hints"),
        (put("outputs", 1, "args", "num_frames", 1), "was requested"),
        (put("outputs", 1, "outputs", 0, "files", 1, "req/clip/control_edge.jpg"), "control_edge.mp4"),
        (put("outputs", 2, "outputs", 0, "files", 0, "req/ask/vision.jpg"), "reasoner_text.txt"),
        (put("outputs", 2, "args", "seg", {}), "hints"),
    ],
)
def test_hints_and_text(change, said):
    assert said in str(broken(change))


def test_a_text_answer_is_not_bound_to_frames():
    body = response()
    body["outputs"][2]["args"]["num_frames"] = 9
    assert bind_response(REQUEST, body)


def test_an_unknown_mode_is_refused_even_when_it_was_asked_for():
    request = BatchRequest(samples=[{"name": "a", "model_mode": "tex2image", "num_frames": 1}], request_id="req")
    outputs = [result("a", "tex2image", 1, ["vision.jpg"])]
    artifacts = [{"sample": "a", "path": "req/a/vision.jpg", "bytes": 3, "sha256": SHA}]
    with pytest.raises(ContractViolation, match="unknown"):
        bind_response(request, {**response(), "batch_size": 1, "outputs": outputs, "artifacts": artifacts})


def test_rules_apply_in_the_documented_order():
    body = response()
    put("outputs", 0, "status", "error")(body)
    put("batch_size", 2)(body)
    put("framework_revision", "x")(body)
    put("request_id", "other")(body)
    for said, mend in [
        ("request_id", put("request_id", "req")),
        ("framework_revision", put("framework_revision", FRAMEWORK_REVISION)),
        ("batch_size", put("batch_size", 3)),
        ("status is error", put("outputs", 0, "status", "success")),
    ]:
        with pytest.raises(ContractViolation, match=said):
            bind_response(REQUEST, body)
        mend(body)
    bind_response(REQUEST, body)


def test_another_revision_is_accepted_only_by_name():
    body = {**response(), "framework_revision": "diffusers-0.42.1"}
    error = broken(put("framework_revision", "diffusers-0.42.1"))
    assert error.stable_code == "revision_mismatch"
    assert bind_response(REQUEST, body, expected_revision="diffusers-0.42.1")
    with pytest.raises(ContractViolation):
        bind_response(REQUEST, response(), expected_revision="diffusers-0.42.1")


def test_codes_tell_a_failed_sample_from_a_broken_server():
    assert broken(put("outputs", 0, "status", "error")).stable_code == "sample_failed"
    assert broken(put("outputs", 0, "outputs", [])).stable_code == "contract_violation"


# ---- partial


@pytest.mark.parametrize(("change", "said"), RESULT)
def test_a_broken_result_leaves_the_others(change, said):
    body = response()
    change(body)
    bound = bind_partial(REQUEST, body)
    assert bound.complete == ("clip", "ask")
    assert said in bound.missing[0].message
    assert {artifact.sample for artifact in bound.artifacts} == {"clip", "ask"}


@pytest.mark.parametrize(("change", "said"), ENVELOPE)
def test_a_broken_envelope_leaves_nothing(change, said):
    body = response()
    change(body)
    with pytest.raises(ContractViolation):
        bind_partial(REQUEST, body)


def records(*states):
    names = [sample["name"] for sample in SAMPLES]
    return [{"name": name, "state": state} for name, state in zip(names, states, strict=True)]


def failed_body():
    body = response()
    body["outputs"][0] |= {"status": "error", "outputs": [], "message": "Error: blocked"}
    body["artifacts"] = body["artifacts"][2:]
    body["samples"] = records("failed", "succeeded", "succeeded")
    body["samples"][0] |= {"code": "guardrail_blocked", "message": "prompt blocked", "retryable": False}
    return body


def test_the_record_says_why():
    bound = bind_partial(REQUEST, failed_body())
    (missing,) = bound.missing
    assert (missing.name, missing.code, missing.message) == ("img", "guardrail_blocked", "prompt blocked")
    with pytest.raises(ContractViolation, match="'img': prompt blocked") as caught:
        bind_response(REQUEST, failed_body())
    assert caught.value.stable_code == "sample_failed"


@pytest.mark.parametrize(
    "samples",
    [
        records("succeeded", "succeeded", "succeeded"),
        records("running", "succeeded", "succeeded"),
        records("failed", "failed", "succeeded"),
        records("failed", "succeeded", "succeeded")[:2],
        [*records("failed", "succeeded", "succeeded"), {"name": "img", "state": "failed"}],
        [{"name": "other", "state": "failed"}, *records("failed", "succeeded", "succeeded")[1:]],
        [{"name": "img", "state": "unknown"}, *records("failed", "succeeded", "succeeded")[1:]],
        "x",
    ],
)
def test_records_must_agree_with_the_results(samples):
    body = {**failed_body(), "samples": samples}
    with pytest.raises(ContractViolation):
        bind_partial(REQUEST, body)


JUNK = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.none(), max_size=2) | st.just({})


def spots(value, path=()):
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from spots(child, (*path, key))


SPOTS = [path for path in spots({**response(), "samples": records("succeeded", "succeeded", "succeeded")}) if path]


@given(st.sampled_from(SPOTS), JUNK)
def test_junk_anywhere_is_bound_or_refused_never_a_crash(path, junk):
    body = copy.deepcopy({**response(), "samples": records("succeeded", "succeeded", "succeeded")})
    put(*path, junk)(body)
    try:
        bound = bind_response(REQUEST, body)
    except ContractViolation as error:
        assert error.detail
    else:
        assert {a.path for a in bound.artifacts} == {a["path"] for a in response()["artifacts"]}


@pytest.mark.parametrize("body", [None, [], "x", 1, {}])
def test_not_a_response(body):
    with pytest.raises(ContractViolation):
        bind_response(REQUEST, body)
