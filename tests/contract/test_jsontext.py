import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos3_serve.contract.jsontext import JsonProblem, canonical_json, check_json, decode_json, plainly_clean
from cosmos3_serve.errors import ValidationFailed

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{'a': 1}",
        b"NaN",
        b'{"a": Infinity}',
        b"[-Infinity]",
        b"1e999",
        b"\xff",
        '{"a": 1}'.encode("utf-16"),
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"1" * 5000,
        b'{"a": 1} x',
        b'{"a": 1, "b": {"c": 1, "c": 1}}',
    ],
)
def test_what_is_not_json(body):
    with pytest.raises(ValidationFailed) as caught:
        decode_json(body)
    assert caught.value.stable_code == "invalid_json"
    assert len(caught.value.detail) < 300


@given(VALUES)
def test_clean_values_survive_both_ways(value):
    try:
        check_json(value, max_depth=50, max_nodes=10_000)
    except JsonProblem as problem:
        assert "surrogate" in problem.message
        return
    assert decode_json(json.dumps(value).encode()) == value
    assert json.loads(canonical_json(value)) == value


def test_canonical_json_ignores_order_only():
    assert canonical_json({"b": 1, "a": [1.5, None]}) == b'{"a":[1.5,null],"b":1}'
    assert canonical_json({"a": 1}) != canonical_json({"a": "1"})
    assert canonical_json({"a": 1}) != canonical_json({"a": 1.0})
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))


def deep(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {"b": float("nan")}}, ("a", "b")),
        ({"a": [1, float("-inf")]}, ("a", 1)),
        ({"a": "\ud800"}, ("a",)),
        ({"a": {"\udfff": 1}}, ("a",)),
        ({"a": {1: 2}}, ("a",)),
        ({"a": b"x"}, ("a",)),
        ({"a": 10**400}, ("a",)),
        ({"deep": deep(5000)}, ("deep",)),
        ({"wide": list(range(200))}, ("wide",)),
    ],
)
def test_check_json_says_where(value, path):
    with pytest.raises(JsonProblem) as caught:
        check_json(value, max_depth=10, max_nodes=100)
    assert caught.value.path == path


def test_depth_limit_is_exact():
    check_json(deep(10), max_depth=10, max_nodes=100)
    with pytest.raises(JsonProblem):
        check_json(deep(11), max_depth=10, max_nodes=100)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (b'{"a": [1, 2.5, "x", null, true], "b": {"c": 12345678901234567890}}', True),
        (b'{"a": "[[[[[[[[[[[["}', False),  # says nothing, though it would pass
        (b"[" * 11 + b"]" * 11, False),
        (b'{"a": "\\ud800"}', False),
        (b'{"a": 1' + b"0" * 400 + b"}", False),
        (b'{"a": -' + b"9" * 299 + b"}", True),
    ],
)
def test_a_text_that_is_plainly_clean_needs_no_second_look(text, clean):
    assert plainly_clean(text, max_depth=10) is clean
    if clean:
        check_json(decode_json(text), max_depth=10, max_nodes=100)


@given(VALUES)
def test_whatever_is_plainly_clean_passes_the_walk(value):
    for ascii_only in (True, False):
        try:
            text = json.dumps(value, ensure_ascii=ascii_only).encode()
            decoded = decode_json(text)
        except (UnicodeEncodeError, ValidationFailed):
            continue
        if plainly_clean(text, max_depth=8):
            check_json(decoded, max_depth=8, max_nodes=10_000)
