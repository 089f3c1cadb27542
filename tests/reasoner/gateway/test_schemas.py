"""JSON schemas that refer to themselves: recursion is fine, a circle without end is the client's error."""

from pathlib import Path
from typing import Any

import pytest
from support.gateway import CHAT, text, world

from cosmos3_serve.errors import InvalidRequest
from cosmos3_serve.reasoner.gateway.schemas import MAX_NODES, check_schemas

ENDLESS: list[dict[str, Any]] = [
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}]},
    {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"$defs": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/b"}]}, "b": {"oneOf": [{"$ref": "#/$defs/a"}]}}},
    {"properties": {"x": {"not": {"$ref": "#/properties/x"}}}},
    {"$defs": {"a/b~c": {"if": {"$ref": "#/%24defs/a~1b~0c"}}}},
    {"items": [{"$ref": "#/items/0"}]},
]
FINE: list[Any] = [
    {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}},
    {"$defs": {"n": {"anyOf": [{"type": "null"}, {"items": {"$ref": "#/$defs/n"}}]}}, "$ref": "#/$defs/n"},
    {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "string"}}},
    {"properties": {"$ref": {"type": "string"}, "allOf": {"type": "object"}}},
    {"$ref": "https://example.com/other.json"}, {"$ref": "#/nowhere/9/x"}, {"enum": ["#"]}, {}, [], None, "text", True,
]  # fmt: skip


def bodies(schema: Any) -> list[tuple[str, dict[str, Any]]]:
    return [
        (
            "response_format.json_schema.schema",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
        ),
        ("structured_outputs.json", {"structured_outputs": {"json": schema}}),
        ("text.format.schema", {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}),
        ("tools[0].parameters", {"tools": [{"type": "function", "name": "f", "parameters": schema}]}),
        ("tools[1].function.parameters", {"tools": [{}, {"type": "function", "function": {"parameters": schema}}]}),
    ]


@pytest.mark.parametrize("schema", ENDLESS)
def test_a_circle_is_named_wherever_it_stands(schema: dict[str, Any]) -> None:
    for where, body in bodies(schema):
        with pytest.raises(InvalidRequest) as refused:
            check_schemas(body)
        assert refused.value.stable_code == "schema_invalid" and refused.value.errors[0].field == where


@pytest.mark.parametrize("schema", FINE)
def test_everything_else_is_the_engines_business(schema: Any) -> None:
    for _, body in bodies(schema):
        check_schemas(body)


def test_depth_and_size_have_a_bound() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(MAX_NODES - 10):
        deep = {"not": deep}
    check_schemas({"structured_outputs": {"json": deep}})
    with pytest.raises(InvalidRequest, match=str(MAX_NODES)):
        check_schemas({"structured_outputs": {"json": {"enum": [{} for _ in range(MAX_NODES)]}}})


async def test_the_client_reads_why_and_no_replica_is_asked(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=2) as here, here.client() as http:
        body = {**text(), **bodies(ENDLESS[2])[0][1]}
        told = await http.post(CHAT, json=body)
        assert (told.status_code, told.json()["error"]["code"]) == (400, "schema_invalid")
        assert told.json()["error"]["param"] == "response_format.json_schema.schema"
        assert not any(replica.asked for replica in here.replicas)
