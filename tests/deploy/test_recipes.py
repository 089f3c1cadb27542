"""The committed recipes are what the code renders, and their commands are real."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from support.commands import in_script, parse
from support.manifests import ROOT

from cosmos3_serve.deploy.render import render

RECIPES = ROOT / "recipes"
# Folder, and how it is written.
WRITTEN = {
    "cosmos3-nano-reasoner": [("dynamo", ""), ("kuberay", "reasoner")],
    "cosmos3-generator": [("kuberay", "generator")],
}
RENDERED = {
    f"{folder}/{f.path}": f
    for folder, renderings in WRITTEN.items()
    for target, service in renderings
    for f in render(target, service=service)
}
# What brings every file that a target may write.
ASKED: dict[str, tuple[str, ...]] = {"dynamo": ("overlay.ngc_api_key=true",), "kuberay": ()}
PAGES = sorted(page for folder in WRITTEN for page in (RECIPES / folder).rglob("*.md"))


@pytest.mark.parametrize("path", sorted(RENDERED))
def test_the_committed_file_is_what_the_code_renders(path: str) -> None:
    assert (RECIPES / path).read_text(encoding="utf-8") == RENDERED[path].text(), "run `make recipes`"


def test_no_other_manifest_lies_there() -> None:
    found = {str(path.relative_to(RECIPES)) for folder in WRITTEN for path in (RECIPES / folder).rglob("*.yaml")}
    assert found == set(RENDERED)
    assert [p.name for p in (ROOT / "workflows").rglob("*.yaml")] == ["cosmos3-ray-batch.yaml"]


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


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.parent.name)
def test_what_a_page_applies_is_what_it_renders(page: Path) -> None:
    """One folder: the one that the page's commands write."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    written: dict[str, set[str]] = {}
    for call in re.findall(r"^cosmos3 deploy render .*$", text, re.MULTILINE):
        found = parse(shlex.split(call))
        files = render(
            found["target"], service=found["service"], sets=[*(found["sets"] or []), *ASKED[found["target"]]]
        )
        written.setdefault(str(found["output_dir"]), set()).update(f.path for f in files)
    applied = re.findall(r"kubectl[^\n]* apply\s+-[fk]\s+\"?([\w./${}-]+)", text)
    assert applied or page.parent == ROOT
    for path in applied:
        folder, _, file = path.partition("/")
        for profile in ("round-robin", "session-affinity"):
            name = file.replace("${PROFILE}", profile)
            assert {name, f"{name}/kustomization.yaml"} & written[folder], path


def test_the_make_target_writes_all_of_it() -> None:
    lines = re.search(r"^recipes:.*?\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert lines is not None
    for folder, renderings in WRITTEN.items():
        for target, service in renderings:
            wanted = f"--target {target}" + (f" --service {service}" if service else "") + f" --output recipes/{folder}"
            assert wanted in lines[1]
    for line in lines[1].splitlines():
        if "cosmos3" in line.split()[0]:
            parse(["cosmos3", *line.split()[1:]])


def test_both_pages_of_the_reasoner_are_there() -> None:
    assert len(PAGES) >= 2
    names = {str(page.relative_to(RECIPES)) for page in PAGES}
    assert {"cosmos3-nano-reasoner/README.md", "cosmos3-nano-reasoner/perf/README.md"} <= names
