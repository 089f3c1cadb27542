"""The house's import direction (docs/architecture.md, "Rooms") and what the client may not drag in."""

import ast
import functools
import json
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "cosmos3_serve"
PACKAGE = "cosmos3_serve"

EVERYWHERE = {"errors", "settings", "retry", "proxies"}
# Room -> rooms it may import besides itself and those of EVERYWHERE.
ALLOWED: dict[str, set[str] | None] = {
    "cli": None,  # everything
    "trial": {
        *("queue", "client", "reasoner_client", "checks", "review", "publication", "generator", "reasoner"),
        *("media", "service", "weights", "storage", "contract", "blockworld"),
    },
    "deploy": {"contract"},
    "bench": {"client", "reasoner_client", "contract", "blockworld"},
    "review": {"publication", "contract", "storage"},
    "checks": {"weights", "storage", "contract", "blockworld"},
    "reasoner_client": {"queue", "client", "publication", "contract", "storage"},
    "queue": {"client", "publication", "contract", "storage"},
    "client": {"publication", "contract", "storage"},
    "publication": {"contract", "storage"},
    "generator": {"media", "service", "weights", "storage", "contract"},
    "reasoner": {"media", "service", "weights", "storage", "contract"},
    "media": set(),
    "service": set(),
    "weights": set(),
    "storage": set(),
    "contract": set(),
    "blockworld": set(),
    "settings": set(),
    "retry": set(),
    "proxies": set(),
    "errors": set(),
}
HEAVY = {"ray", "torch", "diffusers", "transformers", "numpy", "fastapi", "moto"}
LIGHT_ROOMS = (
    *("contract", "storage", "publication", "client", "queue"),
    *("reasoner_client", "review", "checks", "deploy"),
)
CLIENT_CPU_S = 0.5


def modules() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def room_of(path: Path) -> str:
    first = path.relative_to(SRC).parts[0]
    return first.removesuffix(".py")


@functools.cache
def imported(path: Path, tree: ast.Module | None = None) -> frozenset[str]:
    """Absolute names of everything a module imports, at any depth (imports inside functions count)."""
    package = [PACKAGE, *path.relative_to(SRC).parent.parts]
    names: set[str] = set()
    for node in ast.walk(tree or ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def rooms_imported(names: Collection[str]) -> set[str]:
    own = {name.split(".")[1] for name in names if name.startswith(PACKAGE + ".")}
    return {name for name in own if name in ALLOWED or (SRC / name).is_dir()}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SRC)))
def test_imports_point_downwards(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        assert not rooms_imported(imported(path)), "the package itself imports no room"
        return
    assert room in ALLOWED, f"{room}/ is not a room of the design"
    allowed = ALLOWED[room]
    if allowed is None:
        return
    found = rooms_imported(imported(path)) - {room, *EVERYWHERE}
    if room == "errors":
        found |= rooms_imported(imported(path)) - {"errors"}
    assert found <= allowed, f"{room}/ may not import {sorted(found - allowed)}"


def circles(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Modules that cannot be ordered by their imports: what is left once no module imports only ordered ones."""
    left = {name: set(found) for name, found in graph.items()}
    while ready := [name for name, found in left.items() if not found & left.keys()]:
        for name in ready:
            del left[name]
    return [[name, *sorted(found & left.keys())] for name, found in left.items()]


def test_no_modules_import_each_other() -> None:
    paths = {
        ".".join([PACKAGE, *path.relative_to(SRC).with_suffix("").parts]).removesuffix(".__init__"): path
        for path in modules()
    }
    graph = {
        name: {n for n in imported(path) if n in paths and n not in (name, PACKAGE)} for name, path in paths.items()
    }
    packages = {name for name, path in paths.items() if path.name == "__init__.py"}
    graph = {name: {n for n in found if n not in packages or packages & {name}} for name, found in graph.items()}
    assert circles(graph) == []


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"a"}, "c": {"a"}, "d": ()}) == [["a", "b"], ["b", "a"], ["c", "a"]]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from cosmos3_serve.client import submit", {"client"}),
        ("import cosmos3_serve.generator.queue.scheduler", {"generator"}),
        ("from cosmos3_serve import client", {"client"}),
        ("from ..client import submit", {"client"}),
        ("def f():\n    from cosmos3_serve.service.tokens import TokenBook", {"service"}),
        ("import json", set()),
    ],
)
def test_the_rule_sees_every_form_of_import(text: str, names: set[str]) -> None:
    assert rooms_imported(imported(SRC / "contract" / "x.py", ast.parse(text))) == names


@pytest.mark.parametrize("room", LIGHT_ROOMS)
def test_light_rooms_name_no_heavy_package(room: str) -> None:
    found = {
        f"{path.relative_to(SRC)}: {name}"
        for path in (SRC / room).rglob("*.py")
        for name in imported(path)
        if name.split(".")[0] in HEAVY
    }
    assert not found


def loaded_by(statement: str) -> tuple[set[str], float]:
    """Top-level packages loaded by a statement in a fresh interpreter, and its CPU seconds."""
    script = (
        "import time, json, sys; a = time.process_time()\n"
        f"{statement}\n"
        "print(json.dumps([sorted({m.split('.')[0] for m in sys.modules}), time.process_time() - a]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    names, seconds = json.loads(done.stdout)
    return set(names), seconds


def test_importing_the_light_rooms_loads_nothing_heavy() -> None:
    names = [
        ".".join([PACKAGE, *path.relative_to(SRC).with_suffix("").parts]).removesuffix(".__init__")
        for room in LIGHT_ROOMS
        for path in (SRC / room).rglob("*.py")
    ]
    loaded, _ = loaded_by("import " + ", ".join(names))
    assert not loaded & HEAVY


def test_the_command_line_loads_nothing_heavy() -> None:
    loaded, _ = loaded_by("import cosmos3_serve.cli.main as m; m.build(); m.build_npa()")
    assert not loaded & HEAVY


def test_importing_the_package_is_cheap() -> None:
    # CPU seconds, not wall time: the best of three keeps a busy machine from deciding.
    assert min(loaded_by(f"import {PACKAGE}")[1] for _ in range(3)) < CLIENT_CPU_S
