"""Rules that hold for every file: short, about the project alone, nothing left for later, types checked."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "docs", "benchmarks", "containers", "recipes", ".ci")
TOP = ("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "constraints.txt", "hatch_build.py")
TEXT = {".py", ".md", ".toml", ".txt", ".json", ".yaml", ".yml", ".sh", ".Dockerfile", ""}
MAX_LINES = 350

# Spelled in pieces, so that this file does not match itself.
PLACES = re.compile(r"/(?:wo" r"rk|fa" r"rm|ro" r"ot|Us" r"ers)/|/home/[a-z]+/|\.libra" r"ry\b")
MERGE = re.compile(r"^(?:<<<<" r"<<<|>>>>" r">>>) ")
LATER = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX)\b|raise Not" r"ImplementedError")


def files() -> list[Path]:
    found = [ROOT / name for name in TOP if (ROOT / name).is_file()]
    for folder in FOLDERS:
        found += [p for p in sorted((ROOT / folder).rglob("*")) if p.is_file() and "__pycache__" not in p.parts]
    return [p for p in found if p.suffix in TEXT]


def sources() -> list[Path]:
    return sorted((ROOT / "src").rglob("*.py"))


def test_files_are_short() -> None:
    long = {str(p.relative_to(ROOT)): n for p in sources() if (n := len(p.read_text().splitlines())) >= MAX_LINES}
    assert not long, f"{MAX_LINES} lines or more: is there more than one noun in them?"


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (PLACES, "a path of one machine"),
        (LATER, "something left for later"),
        (MERGE, "a conflict that was not resolved"),
    ],
)
def test_no_file_names(rule: re.Pattern[str], what: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if rule.search(line)
    ]
    assert not found, what


def test_the_rules_bite() -> None:
    assert PLACES.search("see /wo" + "rk/main")
    assert MERGE.search("<<<<" + "<<< HEAD")
    assert LATER.search("# TO" + "DO: later")
    assert not PLACES.search("work/in/progress is a relative path")


def test_every_module_says_what_it_is() -> None:
    silent = [str(p.relative_to(ROOT)) for p in sources() if not p.read_text().lstrip().startswith('"""')]
    assert [p for p in silent if not p.endswith("__init__.py")] == []


def test_every_python_file_of_the_recipes_is_type_checked() -> None:
    """mypy is told of them by name: a file that nobody names would go unchecked."""
    found = sorted(path.stem for path in (ROOT / "recipes").rglob("*.py"))
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    assert found == checked["modules"], "name it in pyproject.toml: tool.mypy.modules"
    assert any(found == row["module"] for row in checked["overrides"]), "and in the overrides of files over torch"
