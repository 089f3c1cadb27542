"""Specific error codes, read from the package's own source: every failure that is made with a `code` of its own.

A class gives its default code (`errors.py`); a place may give a narrower one, as in `NotReady(…, code="disk_full")`.
Those are found by reading the syntax trees, so the list can't forget one. A place whose code can't be read there passes
on another failure's code; such places are named in `PASSED_ON`, and a test keeps that list exact.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cosmos3_serve import errors
from cosmos3_serve.errors import Cosmos3Error

PACKAGE = Path(__file__).parents[1]
_GIVEN = re.compile(r"\bcode\s*=")

# Who makes a refusal of media, and the class that it becomes: code first, then message, then remedy.
MEDIA = {
    "bad": "InvalidRequest",
    "too_large": "LimitExceeded",
    "unsupported": "UnsupportedMediaType",
    "broken": "ValidationFailed",
}

REFUSING = ("media/", "reasoner/media/")  # the rooms that make them

# File, and what stands there as the code: the failure is another's, told again.
PASSED_ON = {
    ("trial/golden_service.py", "code"),
    ("client/outcome.py", "error.stable_code"),
    ("client/problem.py", "code"),
    ("reasoner_client/ask.py", "code if isinstance(code, str) and code else None"),
    ("client/recovery/record.py", "first.code"),
    ("reasoner_client/ask.py", "str(broken.get('code') or 'answer_incomplete')"),
    ("generator/http/artifacts.py", "error.stable_code"),
    ("generator/http/openai_errors.py", "code.value"),
    ("generator/http/openai_errors.py", "error.stable_code"),
    ("generator/serve.py", "code or None"),
    ("generator/serve.py", "status['failure']['code']"),
    ("generator/queue/staging.py", "None if owned else code"),
    ("queue/batches.py", "error.stable_code"),
    ("queue/planning.py", "self.first.stable_code"),
    ("queue/run.py", "error.stable_code"),
    ("queue/sources.py", "error.stable_code"),
    ("reasoner/gateway/replica_errors.py", "_code(self)"),
    ("reasoner/media/gate.py", "error.stable_code"),
    ("reasoner/media/locate.py", "error.stable_code"),
    ("media/refusal.py", "self.code"),
    ("reasoner/serve.py", "said['code']"),
}


def families() -> dict[tuple[str, str], list[tuple[str, str, str]]]:
    """File, and what stands there as the code, where a table makes it: class, code and remedy of each."""
    from cosmos3_serve.weights import access, foresee, guardrail_assets, hub, nltk_data

    states = [state.value for state in access.AccessState if state is not access.AccessState.GRANTED]
    assets = guardrail_assets._REMEDIES
    cached = [f"guardrail_cache_{kind}" for kind in hub._PAYLOAD]
    fetched = [f"guardrail_fetch_{kind}" for kind in hub._HUB if kind != "offline"]
    tables = [*hub._HUB.values(), *hub._PAYLOAD.values()]
    return {
        ("weights/access.py", "self.state.value"): [("GuardrailsUnavailable", state, "") for state in states],
        ("weights/guardrail_assets.py", "code"): [
            ("GuardrailsUnavailable", code, assets[code.split("_", 2)[2]].format(repo="…")) for code in cached + fetched
        ],
        ("weights/hub.py", "code"): [
            ("CheckpointUnavailable", code, remedy.format(repo="…")) for code, remedy in tables if code is not None
        ],
        ("weights/foresee.py", "code"): [
            ("CheckpointUnavailable", code, "") for code in dict.fromkeys(foresee.ACCESS_CODES.values())
        ],
        ("weights/nltk_data.py", "f'guardrail_tokenizer_{category}'"): [
            ("GuardrailsUnavailable", f"guardrail_tokenizer_{category}", remedy)
            for category, remedy in nltk_data._REMEDIES.items()
        ],
    }


@dataclass(frozen=True, slots=True)
class Place:
    """One failure that is made with a code. `code` is None where it can't be read, and `text` is what stands there."""

    file: str
    kind: str
    code: str | None
    text: str
    remedy: str


@dataclass(slots=True)
class _Names:
    """What a name may stand for: every value assigned to it in the file, or in the module of the package it comes
    from, which is not read before it is asked for."""

    source: _Source
    package: Path

    def values(self, name: str) -> list[ast.expr]:
        if name in self.source.imported:
            module, there = self.source.imported[name]
            path = self.package.joinpath(*module.split(".")[1:]).with_suffix(".py")
            if module.startswith(f"{self.package.name}.") and path.is_file():
                found = _parsed(path).assigned.get(there)
                if found is not None:
                    return found
        return self.source.assigned.get(name, [])

    def texts(self, node: ast.expr | None, depth: int = 0) -> list[str] | None:
        """The texts that an expression may be; None: that can't be read."""
        if depth > 4:
            return None
        if isinstance(node, ast.Constant):
            return [node.value] if isinstance(node.value, str) else None
        if isinstance(node, ast.IfExp):  # None stands for the class's own code
            sides = [side for side in (node.body, node.orelse) if not _is_none(side)]
            return self._all(sides, depth)
        if isinstance(node, ast.BoolOp):
            return self.texts(node.values[-1], depth + 1)
        if isinstance(node, ast.Name):
            return self._all(self.values(node.id), depth)
        return None

    def _all(self, nodes: list[ast.expr], depth: int) -> list[str] | None:
        found = [self.texts(node, depth + 1) for node in nodes]
        return None if None in found or not found else [text for texts in found if texts for text in texts]

    def shown(self, node: ast.expr | None, depth: int = 0) -> str:
        """A sentence for a reader, `…` for what only the failure itself knows."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else ""
        if isinstance(node, ast.JoinedStr):
            return "".join(self.shown(part, depth) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            return self.shown(node.value, depth)
        if isinstance(node, ast.IfExp):
            return " / ".join(filter(None, (self.shown(node.body, depth), self.shown(node.orelse, depth))))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.shown(node.left, depth) + self.shown(node.right, depth)
        if isinstance(node, ast.Name) and depth < 4:
            values = self.values(node.id)
            if len(values) == 1:
                return self.shown(values[0], depth + 1)
        return "" if node is None else "…"

    def kinds(self, node: ast.expr) -> list[str]:
        """Names of the failure classes that a callee may be."""
        if isinstance(node, ast.IfExp):
            return self.kinds(node.body) + self.kinds(node.orelse)
        name = node.id if isinstance(node, ast.Name) else ""
        if name in _CLASSES:
            return [name]
        return [kind for value in self.values(name) if isinstance(value, ast.IfExp) for kind in self.kinds(value)]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _tree(root: type[Cosmos3Error]) -> Iterator[type[Cosmos3Error]]:
    yield root
    for kind in root.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from _tree(kind)


_CLASSES = {kind.__name__: kind for kind in _tree(Cosmos3Error)}


@lru_cache(maxsize=1)
def places(package: Path = PACKAGE) -> tuple[Place, ...]:
    """Every place of the package's source that makes a failure with a code of its own, in order of file and line."""
    files = (path for path in sorted(package.rglob("*.py")) if path != package / "errors.py")
    return tuple(place for path in files for place in _places_of(path, package))


def _places_of(path: Path, package: Path) -> Iterator[Place]:
    file = path.relative_to(package).as_posix()
    if not file.startswith(REFUSING) and not _GIVEN.search(path.read_text(encoding="utf-8")):
        return
    source = _parsed(path)
    names = _Names(source, package)
    for node in source.calls:
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if "code" in given and (_makes_failure(node.func, names) or _passes(file, given["code"])):
            kinds = names.kinds(node.func) or [""]
            code, remedy = given["code"], given.get("remedy")
        elif isinstance(node.func, ast.Name) and node.func.id in MEDIA and file.startswith(REFUSING):
            kinds = [MEDIA[node.func.id]]
            code, remedy = node.args[0], given.get("remedy") or (node.args[2] if len(node.args) > 2 else None)
        else:
            continue
        shown = names.shown(remedy).strip()
        for kind in kinds:
            texts: list[str | None] = [*(names.texts(code) or [])] or [None]
            yield from (Place(file, kind, text, ast.unparse(code), shown) for text in texts)


def _makes_failure(func: ast.expr, names: _Names) -> bool:
    return bool(names.kinds(func)) or (isinstance(func, ast.Name) and func.id == "kind")


def _passes(file: str, code: ast.expr) -> bool:
    return (file, ast.unparse(code)) in PASSED_ON


@dataclass(slots=True)
class _Source:
    """Of one file what is asked for again, so that its tree is walked once. `imported`: name -> module, name there."""

    calls: list[ast.Call] = field(default_factory=list)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    assigned: dict[str, list[ast.expr]] = field(default_factory=dict)


@lru_cache(maxsize=512)
def _parsed(path: Path) -> _Source:
    found = _Source()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            found.calls.append(node)
        elif isinstance(node, ast.ImportFrom):
            found.imported |= {alias.asname or alias.name: (node.module or "", alias.name) for alias in node.names}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found.assigned.setdefault(node.target.id, []).append(node.value)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.assigned.setdefault(target.id, []).append(node.value)
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    for name, value in zip(target.elts, node.value.elts, strict=False):
                        if isinstance(name, ast.Name):
                            found.assigned.setdefault(name.id, []).append(value)
    return found


def code_rows() -> list[dict[str, str]]:
    """One row for each code and class, by code; the remedies are those of all its places."""
    rows: dict[tuple[str, str], list[str]] = {}
    found = [(place.kind, place.code, place.remedy) for place in places() if place.code is not None]
    for kind, code, remedy in [*found, *(one for family in families().values() for one in family)]:
        if code and code != _CLASSES[kind].code:  # an empty code stands for the class's own
            remedies = rows.setdefault((code, kind), [])
            remedy = remedy or _CLASSES[kind].default_remedy
            if remedy and remedy not in remedies:
                remedies.append(remedy)
    return [
        {
            "code": code,
            "HTTP": str(_CLASSES[kind].status) if over_http(_CLASSES[kind]) else "",
            "exit": str(_CLASSES[kind].exit_code),
            "class": kind,
            "remedy": "; or: ".join(remedies),
        }
        for (code, kind), remedies in sorted(rows.items())
    ]


def over_http(kind: type[Cosmos3Error]) -> bool:
    """Client-side and start-up failures never travel as an HTTP answer."""
    return not issubclass(kind, (errors.Cosmos3RayServeError, errors.StartRefused, errors.UsageError))
