"""Values: file under --set, unknown keys and wrong types named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos3_serve.deploy.dynamo.values import DynamoValues
from cosmos3_serve.deploy.kuberay.values import KuberayValues
from cosmos3_serve.deploy.values import Values, catalogue
from cosmos3_serve.errors import UsageError


def load(*sets: str, file: Mapping[str, Any] | None = None) -> DynamoValues:
    return DynamoValues.load(file, sets)


def test_set_wins_over_the_file_and_the_file_over_the_defaults() -> None:
    values = load("worker.replicas=4", file={"worker": {"replicas": 2, "cpu": "8"}, "cache": {"size": "50Gi"}})
    assert (values.worker.replicas, values.worker.cpu, values.cache.size) == (4, "8", "50Gi")
    assert values.worker.precision == "fp8"


def test_the_last_set_of_a_key_wins_and_hyphens_are_underscores() -> None:
    assert load("cache.storage-class=a", "cache.storage_class=b").cache.storage_class == "b"


def test_a_label_keeps_its_dots_and_a_value_its_equals_signs() -> None:
    values = load("overlay.node_selector.nvidia.com/gpu.product=NVIDIA-H200", "worker.env.A=b=c")
    assert values.overlay.node_selector == {"nvidia.com/gpu.product": "NVIDIA-H200"}
    assert values.worker.env == {"A": "b=c"}
    assert load(file={"worker": {"env": {"A": "1"}}}).worker.env == {"A": "1"}


def test_lists_are_comma_lists() -> None:
    assert load("perf.concurrency=1, 4").perf.concurrency == (1, 4)
    assert load(file={"perf": {"concurrency": [2, 8]}}).perf.concurrency == (2, 8)


@pytest.mark.parametrize(
    ("text", "code", "field"),
    [
        ("worker.replica=3", "deploy_unknown_key", "worker.replica"),
        ("foo=1", "deploy_unknown_key", "foo"),
        ("images=x", "deploy_unknown_key", "images"),
        ("images.worker.tag=x", "deploy_unknown_key", "images.worker.tag"),
        ("worker.env=x", "deploy_unknown_key", "worker.env"),
        ("worker.replicas=x", "deploy_bad_value", "worker.replicas"),
        ("worker.replicas=0", "deploy_bad_value", "worker.replicas"),
        ("worker.precision=int8", "deploy_bad_value", "worker.precision"),
        ("worker.memory=96 gigabytes", "deploy_bad_value", "worker.memory"),
        ("worker.env.A-B=1", "deploy_bad_value", "worker.env.A-B"),
        ("affinity.ttl_s=31536001", "deploy_bad_value", "affinity.ttl_s"),
        ("name=Not_A_Name", "deploy_bad_value", "name"),
        ("images.worker=", "deploy_bad_value", "images.worker"),
    ],
)
def test_what_cannot_be_set_is_named(text: str, code: str, field: str) -> None:
    with pytest.raises(UsageError) as refused:
        load(text)
    assert refused.value.stable_code == code
    assert [e.field for e in refused.value.errors] == [field]


@pytest.mark.parametrize("text", ["worker", "=3"])
def test_a_set_without_key_or_value(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        load(text)
    assert refused.value.stable_code == "deploy_set_malformed"


def test_a_file_is_checked_as_well() -> None:
    with pytest.raises(UsageError) as refused:
        load(file={"worker": {"replicas": 1, "gpu": 2}, "nope": {"a": {"b": 1}}})
    assert [e.field for e in refused.value.errors] == ["worker.gpu", "nope.a.b"]
    assert "worker.cpu" in refused.value.errors[0].remedy


def test_every_key_says_what_it_means_and_can_be_set() -> None:
    rows = list(catalogue(DynamoValues))
    assert len(rows) > 30
    assert [key for key, _, meaning in rows if not meaning] == []
    for key, default, _ in rows:
        if default:
            load(f"{key}={default}")


@given(st.sampled_from([DynamoValues, KuberayValues]), st.data())
def test_whatever_is_set_is_taken_or_refused_by_name(model: type[Values], data: st.DataObject) -> None:
    known = [key.replace("NAME", "name") for key, _, _ in catalogue(model)]
    keys = st.one_of(st.sampled_from(known), st.text(max_size=20), st.sampled_from(known).map(lambda key: key + ".x"))
    values = st.one_of(
        st.text(max_size=20), st.integers().map(str), st.sampled_from(["", "true", "a,b", "[]", "{}", "~"])
    )
    sets = data.draw(st.lists(st.tuples(keys, values).map("=".join), max_size=4))
    nested = st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=2), st.dictionaries(st.sampled_from([*model.model_fields, "x"]), inner, max_size=3)
        ),
        max_leaves=6,
    )
    file = data.draw(st.dictionaries(st.sampled_from([*model.model_fields, "x"]), nested, max_size=3))
    try:
        model.load(file, sets)
    except UsageError as refused:
        assert refused.stable_code.startswith("deploy_")
        assert refused.errors or refused.stable_code == "deploy_set_malformed"
