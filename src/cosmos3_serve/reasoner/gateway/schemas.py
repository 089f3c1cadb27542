"""JSON schemas in a request: one that refers to itself without end is refused here, before an engine fails over it.

A schema may be recursive (a tree whose children are trees). It may not reach itself through keywords that apply to the
same value, such as `$ref` to `$ref` or `allOf` of itself: nothing could ever be checked against it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from cosmos3_serve.errors import FieldError, InvalidRequest

MAX_NODES = 20_000
_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else")


def check_schemas(body: dict[str, Any]) -> None:
    """
    Raises:
        InvalidRequest: code `schema_invalid`; `errors[0].field` says where the schema stands in the body.
    """
    for where, schema in _schemas(body):
        if isinstance(schema, dict) and (reason := _fault(schema)):
            raise InvalidRequest(f"{where}: {reason}", code="schema_invalid", errors=(FieldError(where, reason),))


def _schemas(body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    form = _mapping(body.get("response_format"))
    yield "response_format.json_schema.schema", _mapping(form.get("json_schema")).get("schema")
    for where, value in (
        ("structured_outputs.json", _mapping(body.get("structured_outputs")).get("json")),
        ("text.format.schema", _mapping(_mapping(body.get("text")).get("format")).get("schema")),
    ):
        yield where, _parsed(value) if isinstance(value, str) else value
    tools = body.get("tools")
    for number, tool in enumerate(tools if isinstance(tools, list) else ()):
        yield f"tools[{number}].function.parameters", _mapping(_mapping(tool).get("function")).get("parameters")
        yield f"tools[{number}].parameters", _mapping(tool).get("parameters")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None  # the engine says what is wrong with it


def _fault(root: dict[str, Any]) -> str:
    nodes: list[dict[str, Any]] = []
    waiting: list[Any] = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            nodes.append(value)
            if len(nodes) > MAX_NODES:
                return f"the schema has more than {MAX_NODES} parts"
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    done: set[int] = set()
    for start in nodes:
        if id(start) not in done and _cyclic(start, root, done):
            return "the schema refers to itself without end ($ref, allOf, anyOf, oneOf, not, if)"
    return ""


def _cyclic(start: dict[str, Any], root: dict[str, Any], done: set[int]) -> bool:
    """Depth first, without recursion; `done`: nodes from which no cycle is reached."""
    path = {id(start)}
    stack = [(start, _same_value(start, root))]
    while stack:
        node, following = stack[-1]
        found = next(following, None)
        if found is None:
            stack.pop()
            path.discard(id(node))
            done.add(id(node))
        elif id(found) in path:
            return True
        elif id(found) not in done:
            path.add(id(found))
            stack.append((found, _same_value(found, root)))
    return False


def _same_value(node: dict[str, Any], root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas that apply to the same value as this one."""
    for name in _LISTS:
        some = node.get(name)
        yield from (one for one in (some if isinstance(some, list) else ()) if isinstance(one, dict))
    yield from (node[name] for name in _SINGLE if isinstance(node.get(name), dict))
    reference = node.get("$ref")
    target = _target(reference, root) if isinstance(reference, str) else None
    if isinstance(target, dict):
        yield target


def _target(reference: str, root: dict[str, Any]) -> Any:
    """What a reference into the same schema names; None for any other."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    found: Any = root
    for part in reference.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isascii() and name.isdigit() and len(name) < 9:
            found = found[int(name)] if int(name) < len(found) else None
        else:
            return None
    return found
