"""The notations of --set: quantities, tolerations, requirements of nodes' labels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos3_serve.deploy.dynamo.values import DynamoValues
from cosmos3_serve.deploy.fields import amount, requirement, toleration
from cosmos3_serve.errors import UsageError


@pytest.mark.parametrize(("text", "number"), [("16Gi", 16 * 2**30), ("500m", 0.5), ("4", 4), ("1.5G", 1.5e9)])
def test_a_quantity_is_a_number(text: str, number: float) -> None:
    assert amount(text) == number


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("nvidia.com/gpu", {"key": "nvidia.com/gpu", "operator": "Exists"}),
        ("spot:NoExecute", {"key": "spot", "operator": "Exists", "effect": "NoExecute"}),
        ("pool=a.b", {"key": "pool", "operator": "Equal", "value": "a.b"}),
        ("pool=", {"key": "pool", "operator": "Equal", "value": ""}),
        ("pool=a:PreferNoSchedule", {"key": "pool", "operator": "Equal", "value": "a", "effect": "PreferNoSchedule"}),
        ("*", {"operator": "Exists"}),
        ("*:NoSchedule", {"operator": "Exists", "effect": "NoSchedule"}),
    ],
)
def test_tolerations(text: str, found: dict[str, str]) -> None:
    assert toleration(text).document() == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("zone in (a,b)", {"key": "zone", "operator": "In", "values": ["a", "b"]}),
        ("example.com/zone notin ( a )", {"key": "example.com/zone", "operator": "NotIn", "values": ["a"]}),
        ("pool=a", {"key": "pool", "operator": "In", "values": ["a"]}),
        ("pool == a", {"key": "pool", "operator": "In", "values": ["a"]}),
        ("pool!=a", {"key": "pool", "operator": "NotIn", "values": ["a"]}),
        ("gpu", {"key": "gpu", "operator": "Exists"}),
        ("!spot", {"key": "spot", "operator": "DoesNotExist"}),
    ],
)
def test_requirements_of_labels(text: str, found: dict[str, object]) -> None:
    assert requirement(text).document() == found


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("pods.tolerations=spot:Never", "pods.tolerations"),
        ("pods.tolerations=*=x", "pods.tolerations"),
        ("pods.tolerations=a b", "pods.tolerations"),
        ("worker.node_affinity=zone in ()", "worker.node_affinity"),
        ("worker.node_affinity=!zone=a", "worker.node_affinity"),
        ("perf.node_affinity=zone in a,b", "perf.node_affinity"),
        ("pods.image_pull_secrets=Not_A_Name", "pods.image_pull_secrets.0"),
        ("frontend.priority_class=High Class", "frontend.priority_class"),
    ],
)
def test_what_is_none_of_them_is_refused_by_name(text: str, field: str) -> None:
    with pytest.raises(UsageError) as refused:
        DynamoValues.load(None, [text])
    assert refused.value.stable_code == "deploy_bad_value"
    assert [error.field for error in refused.value.errors] == [field]


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (toleration, requirement, amount):
        try:
            read(text)
        except ValueError as refused:
            assert str(refused)
