"""The committed recipes are what the code renders, and their commands are real."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.commands import in_script, parse
from support.manifests import ROOT

from cosmos3_serve.deploy.render import render

RECIPES = ROOT / "recipes"
RENDERED = {f"cosmos3-nano-reasoner/{f.path}": f.text() for f in render("dynamo")}
PAGES = sorted(RECIPES.rglob("*.md"))


@pytest.mark.parametrize("path", sorted(RENDERED))
def test_the_committed_file_is_what_the_code_renders(path: str) -> None:
    assert (RECIPES / path).read_text(encoding="utf-8") == RENDERED[path], (
        "cosmos3 deploy render --target dynamo --output recipes/cosmos3-nano-reasoner"
    )


def test_no_other_manifest_lies_there() -> None:
    found = {str(path.relative_to(RECIPES)) for path in RECIPES.rglob("*.yaml")}
    assert found == set(RENDERED)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(RECIPES)))
def test_the_pages_commands_are_real_and_their_files_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    scripts = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    assert scripts
    for script in scripts:
        for call in in_script(script, {"PROFILE": "round-robin"}):
            parse(call)
    for path in re.findall(r"recipes/[\w./${}-]+\.yaml", text):
        for profile in ("round-robin", "session-affinity"):
            assert (ROOT / path.replace("${PROFILE}", profile)).is_file(), path
    for link in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", text):
        assert (page.parent / link).exists(), link


def test_the_seeds_paths_are_named_by_the_page() -> None:
    assert len(PAGES) >= 2
    names = {str(page.relative_to(RECIPES)) for page in PAGES}
    assert {"cosmos3-nano-reasoner/README.md", "cosmos3-nano-reasoner/perf/README.md"} <= names
